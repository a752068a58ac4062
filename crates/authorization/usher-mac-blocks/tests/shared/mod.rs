//! Blocks of one module, read and printed.

mod reading;

use proptest::test_runner::TestCaseError;
use reading::read;
use usher_mac_blocks::ModuleSettings;

/// The statements of a module.
pub struct Statements(&'static str);

pub const fn of(module: &'static str) -> Statements {
    Statements(module)
}

impl Statements {
    fn block(&self, statements: &str) -> String {
        format!("mac {} {{\n  {statements}\n}}\n", self.0)
    }

    pub fn settings(&self, statements: &str) -> ModuleSettings {
        let mut blocks = read(&self.block(statements)).expect("sound statements");
        blocks.remove(0).settings
    }

    /// The canonical form.
    pub fn lines(&self, statements: &str) -> Vec<String> {
        self.settings(statements).lines()
    }

    /// Requires this as the first mistake.
    pub fn refused(&self, statements: &str, place: &str, told: &str, remedy: &str) {
        let mistakes = read(&self.block(statements)).expect_err(statements);
        let (found, advice) = (mistakes[0].to_string(), mistakes[0].remedy());
        assert!(
            found.starts_with(&format!("mac.policy:{place}: ")),
            "{found}"
        );
        assert!(found.contains(told), "{found}");
        assert!(advice.contains(remedy), "{advice}");
    }

    pub fn are_read_back_or_refused(&self, statements: &str) -> Result<(), TestCaseError> {
        match read(&self.block(statements)) {
            Ok(blocks) => assert_eq!(read(&blocks[0].to_text()), Ok(blocks)),
            Err(mistakes) => assert!(mistakes.iter().all(|mistake| !mistake.remedy().is_empty())),
        }
        Ok(())
    }
}
