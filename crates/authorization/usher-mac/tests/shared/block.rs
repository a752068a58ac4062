//! Settings as the policy has them.

use usher_language::{Reporter, Source, parse_syntax};
use usher_mac_blocks::{ModuleSettings, check, dialect};

/// The settings of a module's block with these statements.
pub fn block(module: &str, statements: &str) -> ModuleSettings {
    let sources = [Source {
        name: "test.policy".to_owned(),
        text: format!("mac {module} {{ {statements} }}"),
    }];
    let dialect = dialect();
    let reporter = Reporter::new(&sources);
    let tree = parse_syntax(&dialect, &sources, &reporter).unwrap();
    let mut blocks = check(&tree, &reporter);
    drop(tree);
    let mistakes = reporter.finish();
    assert!(mistakes.is_empty(), "{mistakes:?}");
    blocks.remove(0).settings
}
