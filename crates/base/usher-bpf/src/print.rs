//! libbpf's messages.

use std::cell::Cell;
use std::sync::Once;

use libbpf_rs::PrintLevel;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs an operation that may fail normally, without libbpf's warnings.
pub(crate) fn quietly<T>(what: impl FnOnce() -> T) -> T {
    through_tracing();
    let former = QUIET.replace(true);
    let outcome = what();
    QUIET.set(former);
    outcome
}

/// Sends libbpf's messages to the log instead of standard error. libbpf's warnings are reasons of failures.
pub(crate) fn through_tracing() {
    static ONCE: Once = Once::new();
    fn print(level: PrintLevel, text: String) {
        match level {
            PrintLevel::Warn if !QUIET.get() => tracing::warn!("{}", text.trim_end()),
            PrintLevel::Warn | PrintLevel::Info | PrintLevel::Debug => {
                tracing::debug!("{}", text.trim_end())
            }
        }
    }
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, print)));
    });
}
