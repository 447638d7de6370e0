//! Files from outside and files put in place, and the limits that the operating system sets.
//!
//! The one way to read ([`input_file`], [`mapped`]) and the one way to write ([`atomic_file`], [`staging`]): what comes
//! from outside is regular and of bounded size, what goes out is whole or absent. [`leftovers`] knows what is temporary
//! while it exists, so that whoever handles an interrupt can remove it, and [`scratch`] makes folders of that kind.
//! [`shortage`] tells what a host lacks from what is wrong with an input. [`stamps`] remembers hashes of large files, and
//! [`children`] runs what may die in a process of its own, and [`threads`] works with as many threads as there are.

pub mod atomic_file;
pub mod children;
pub mod hex;
pub mod input_file;
pub mod leftovers;
pub mod mapped;
mod own;
pub mod process;
pub mod scratch;
pub mod shortage;
pub mod size;
pub mod staging;
pub mod stamps;
pub mod threads;
