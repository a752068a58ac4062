//! `usher policy agree`: where hosts' policies contradict each other.

use serde_json::{Value, json};
use usher_analysis::{Disagreement, Universe};

use super::NO;
use super::hosts::{Lines, Loaded};
use crate::failure::Failure;
use crate::output::Output;

/// Printed where a policy has `application` blocks: the limit of the comparison.
const NOT_BY_PROGRAM: &str = "`application` blocks are compared by peers, ports and class only: which \
     programs of two hosts speak with each other is not known, so see to it that both have a block";

/// Prints the contradictions; the exit code says whether there are any.
///
/// # Errors
/// When a text that was read before cannot be read again, which is a defect.
pub fn run(output: &Output, loaded: &Loaded) -> Result<u8, Failure> {
    let found = Universe::new(&[&loaded.network]).disagreements(&loaded.network);
    let lines = Lines::of(loaded, |host| found.iter().any(|found| found.host == *host))?;
    let place = |found: &Disagreement| lines.nearest(&found.host, &found.clause);
    let value: Vec<Value> = found
        .iter()
        .map(|found| {
            // JSON object [`contradiction`]:
            //   host: The host of the clause.
            //   place: Its [`Place`] in the policy, or null.
            //   says: The [`Clause`].
            //   contradicted: The [`Matter`] that contradicts it.
            //   text: The same, for people.
            json!({
                "host": found.host, "place": place(found), "says": found.clause,
                "contradicted": found.matter, "text": found.matter.to_string(),
            })
        })
        .collect();
    // JSON of `usher policy agree`: a list of [`contradiction`].
    output.print(&value, || {
        let mut text = String::new();
        for found in &found {
            if let Some(place) = place(found) {
                text += &format!("{place}: {}\n", found.clause);
            }
            text += &format!("    {}\n", found.matter);
        }
        if text.is_empty() {
            let mut hosts = loaded.network.hosts();
            text = match (hosts.next(), hosts.count()) {
                (Some(only), 0) => format!(
                    "only the policy of {} is known here, so there is none to compare it with",
                    only.name
                ),
                (_, others) => format!("the policies of {} hosts agree", others + 1),
            };
        }
        if loaded
            .network
            .hosts()
            .any(|host| !host.policy.applications.is_empty())
        {
            text = format!("{}\n{NOT_BY_PROGRAM}\n", text.trim_end());
        }
        text
    });
    Ok(if found.is_empty() { 0 } else { NO })
}
