//! A group owns its SMs and has no copy.

fn copy(group: &green_ctx::resource::SmGroup) -> green_ctx::resource::SmGroup {
    group.clone()
}

fn main() {}
