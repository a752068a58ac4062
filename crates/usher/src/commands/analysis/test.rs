//! `usher policy test`: whether the `expect` statements of policies hold.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use usher_analysis::{Expected, Outcome, Verdict};
use usher_base::HostName;

use super::hosts::{Lines, Loaded};
use super::who_can::certificate;
use super::{NO, NOT_KNOWN, explain};
use crate::failure::Failure;
use crate::output::Output;

/// Tries all `expect` statements; the exit code says whether all hold.
///
/// # Errors
/// When there are none, as a test that tests nothing has not passed; as [`Lines::of`].
pub fn run(output: &Output, loaded: &Loaded) -> Result<u8, Failure> {
    let outcomes = loaded.network.try_expectations();
    if outcomes.is_empty() {
        let reason = "the policies have no `expect` statements to test; add some, such as \
                      `expect refuse user bob service imap;`";
        return Err(Failure::refused(reason));
    }
    let count = |result| {
        let outcomes = outcomes.iter();
        outcomes.filter(|outcome| outcome.result == result).count()
    };
    let (hold, fail) = (count(Expected::Holds), count(Expected::Fails));
    let not_known = count(Expected::NotKnown);
    let told: BTreeSet<&HostName> = outcomes.iter().flat_map(concerned).collect();
    // The text for people has no places, so the policies are not read again for it.
    let lines = Lines::of(loaded, |host| output.json && told.contains(host))?;
    let views: Vec<Value> = outcomes
        .iter()
        .map(|outcome| view(outcome, &lines))
        .collect();
    // JSON of `usher policy test`:
    //   hold: How many expectations hold.
    //   fail: How many do not.
    //   not_known: How many are undecided.
    //   expectations: List of [`tried_expectation`].
    let value = json!({
        "hold": hold, "fail": fail, "not_known": not_known, "expectations": views,
    });
    output.print(&value, || {
        let told = outcomes
            .iter()
            .filter(|outcome| outcome.result != Expected::Holds);
        let mut text: String = told.map(outcome_text).collect();
        text += &format!("{hold} hold, {fail} fail, {not_known} cannot be decided here\n");
        text
    });
    Ok(match (fail, not_known) {
        (0, 0) => 0,
        (0, _) => NOT_KNOWN,
        _ => NO,
    })
}

/// The hosts of the connections in the text.
fn concerned(outcome: &Outcome) -> impl Iterator<Item = &HostName> {
    let questions = outcome.examples.iter().map(|decision| &decision.question);
    questions.flat_map(|question| [&question.client, &question.server])
}

fn view(outcome: &Outcome, lines: &Lines<'_>) -> Value {
    let Outcome {
        host,
        expectation,
        result,
        unknown,
        examples,
    } = outcome;
    let examples = examples.iter();
    let examples: Vec<Value> = examples
        .map(|decision| explain::view(decision, lines))
        .collect();
    // JSON object [`tried_expectation`]:
    //   host: The host whose policy has the statement.
    //   expectation: The [`Expectation`].
    //   result: How it came out: [`Expected`].
    //   unknown: List of [`UnknownName`]: names in the statement that the policy lacks.
    //   examples: List of [`decision`] that show it, at most five.
    json!({ "host": host, "expectation": expectation, "result": result, "unknown": unknown,
            "examples": examples })
}

fn outcome_text(outcome: &Outcome) -> String {
    let result = match outcome.result {
        Expected::Fails => "fails",
        _ => "cannot be decided here",
    };
    let expectation = &outcome.expectation;
    let written = expectation.to_text();
    let mut text = format!(
        "{}: {result}: {}\n",
        expectation.origin.place,
        written.trim()
    );
    for name in &outcome.unknown {
        text += &format!("    {name}\n");
    }
    let fails = outcome.result == Expected::Fails;
    if fails && outcome.examples.is_empty() && outcome.unknown.is_empty() {
        text += &format!("    no known host offers {}\n", expectation.service);
    }
    for decision in &outcome.examples {
        let question = &decision.question;
        let verdict = match decision.verdict {
            Verdict::Permitted => "permitted",
            Verdict::NotRefusedHere => "not refused by the known policies",
            Verdict::WithCertificate if decision.not_known.is_empty() => "permitted",
            Verdict::WithCertificate => "not refused by the known policies",
            Verdict::Refused => "refused",
        };
        text += &format!(
            "    {}@{} is {verdict} at {}@{}{}\n",
            question.user,
            question.client,
            question.service,
            question.server,
            certificate(decision)
        );
        for objection in &decision.objections {
            text += &format!("      {}\n", objection.reason);
        }
    }
    text
}
