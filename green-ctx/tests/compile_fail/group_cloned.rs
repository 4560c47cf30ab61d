//! A group owns its SMs and has no copy.

fn copy(group: &green_ctx::SmGroup) -> green_ctx::SmGroup {
    group.clone()
}

fn main() {}
