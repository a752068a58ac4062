//! Reads the blocks of a text.

use usher_language::{Diagnostic, Reporter, Source, parse_syntax};
use usher_mac_blocks::{MacBlock, check, dialect};

pub fn read(text: &str) -> Result<Vec<MacBlock>, Vec<Diagnostic>> {
    let sources = [Source {
        name: "mac.policy".to_owned(),
        text: text.to_owned(),
    }];
    let dialect = dialect();
    let reporter = Reporter::new(&sources);
    let tree = parse_syntax(&dialect, &sources, &reporter).expect("a text within the limits");
    let blocks = check(&tree, &reporter);
    drop(tree);
    match reporter.finish() {
        mistakes if mistakes.is_empty() => Ok(blocks),
        mistakes => Err(mistakes),
    }
}
