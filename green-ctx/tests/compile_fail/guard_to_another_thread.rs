//! A context is current on the thread that made it so: the guard cannot leave it.

fn leave(guard: green_ctx::context::Current) {
    std::thread::spawn(move || drop(guard));
}

fn main() {}
