//! The client's connection task, and the handle that everything else goes through.

mod client;
mod shared;
mod task;

pub use client::{Builder, Client};
pub(crate) use shared::{Handle, Waiting};
