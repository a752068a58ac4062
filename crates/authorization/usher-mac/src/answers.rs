//! Answers of the module `test`, by which tests have entry points refuse.

use usher_bpf::Plain;

use crate::EntryPoint;
use crate::shared::MacTest;

/// The answers of the module `test`. Only processes with this real uid get them, so that a test does
/// not lock itself out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The real uid.
    pub uid: u32,
    /// Positive numbers of errors (errno(3)); entry points that are not named permit.
    pub errors: Vec<(EntryPoint, i32)>,
}

/// Answers as the module `test` reads them.
pub(crate) fn encode(answers: &Answers) -> MacTest {
    let mut encoded = MacTest::zeroed();
    encoded.uid = answers.uid;
    for &(point, error) in &answers.errors {
        encoded.errors[point as usize] = error.unsigned_abs();
    }
    encoded
}
