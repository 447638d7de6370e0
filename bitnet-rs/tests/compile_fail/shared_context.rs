//! A context is not shared between threads.
use bitnet_rs::Context;

fn share(context: &Context) {
    std::thread::scope(|s| {
        s.spawn(|| context.free_cells());
    });
}

fn main() {}
