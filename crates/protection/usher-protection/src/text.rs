//! `application` blocks back to text.

use usher_language::BlockText;

use crate::dialect::{APPLICATION, PROTECTION};
use crate::model::Application;

impl Application {
    /// The `application` block in its canonical form: reads as the same block.
    pub fn to_text(&self) -> String {
        let programs: Vec<String> = self.programs.iter().map(ToString::to_string).collect();
        let mut block = BlockText::new(APPLICATION, programs.join(", "));
        for network in &self.networks {
            let value = format_args!("{} {}", network.peers, network.network_type);
            block.statement("network", value);
        }
        for (name, protection) in &self.protections {
            block.open(PROTECTION, name);
            for item in &protection.items {
                block.word(&item.to_string());
            }
            block.close();
        }
        block.end()
    }
}
