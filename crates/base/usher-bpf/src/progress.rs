//! Loading takes the kernel's verifier seconds for each object, and minutes on a busy machine. A daemon
//! tells its service manager that it is at work, object by object.

use std::sync::OnceLock;

/// A step of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next object is about to be loaded.
    Begins,
    /// It is loaded, or refused.
    Ends,
}

static TELL: OnceLock<fn(Step)> = OnceLock::new();

/// Calls this at each step, in this process. A second call changes nothing.
pub fn tell_progress(tell: fn(Step)) {
    let _ = TELL.set(tell);
}

/// Loads one object.
pub(crate) fn step<T>(load: impl FnOnce() -> T) -> T {
    let tell = |step| {
        if let Some(tell) = TELL.get() {
            tell(step);
        }
    };
    tell(Step::Begins);
    let outcome = load();
    tell(Step::Ends);
    outcome
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    static TOLD: Mutex<Vec<Step>> = Mutex::new(Vec::new());

    #[test]
    fn each_object_has_a_beginning_and_an_end() {
        assert_eq!(step(|| 1), 1);
        assert_eq!(*TOLD.lock(), []);
        tell_progress(|step| TOLD.lock().push(step));
        for _ in 0..2 {
            step(|| assert_eq!(TOLD.lock().last(), Some(&Step::Begins)));
        }
        let both = [Step::Begins, Step::Ends];
        assert_eq!(*TOLD.lock(), [both, both].concat());
    }
}
