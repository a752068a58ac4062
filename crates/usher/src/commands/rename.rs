//! `usher user rename` and `usher host rename`: all of it, or nothing.

mod host;
mod user;

pub use host::host;
pub use user::user;
