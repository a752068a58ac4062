//! `usher mac ugidfw`: the rules of `bsdextended` by the commands of FreeBSD's ugidfw(8).
//!
//! Rules stand in the policy. These commands rewrite one file of it, which is theirs, and put the policy in
//! force; a change that does not come into force leaves the file as it was.

mod words;

use std::path::Path;

use clap::Subcommand;
use nix::unistd::{Group, User};
use serde::Serialize;
use usher_daemon::files::{remove_if_there, write_atomically};
use usher_local::applied::Applied;
use usher_local::paths;
use usher_policy::mac::ModuleSettings;
use usher_policy::mac::bsdextended::{AccessRule, MODULE};
use usher_policy::{Policy, Source};

use crate::commands::configuration::{self, OnRefusal};
use crate::commands::{kept, policy};
use crate::failure::{At, Failure};
use crate::output::{Output, row, table, warn};
use words::Account;

/// The file's name in the policy folder.
const FILE: &str = "ugidfw.policy";

const HEAD: &str = "# `usher mac ugidfw` writes this file. To write rules by hand, move the block to another one.\n";

/// Commands about rules.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the rules in force, in the order in which they are asked
    List,
    /// Add a rule behind the others
    Add {
        /// `subject [not] CONDITION ... object [not] CONDITION ... mode MODE`
        #[arg(required = true, trailing_var_arg = true)]
        rule: Vec<String>,
    },
    /// Replace the rule with this number; the number after the last adds a rule
    Set {
        /// The number of the rule
        number: usize,
        /// As in `add`
        #[arg(required = true, trailing_var_arg = true)]
        rule: Vec<String>,
    },
    /// Remove a rule; those behind it move up
    Remove {
        /// The number of the rule
        number: usize,
    },
}

/// A rule in force.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct RuleView {
    /// The number of the rule, from 1.
    number: usize,
    /// In ugidfw's form.
    rule: String,
    /// In the policy's.
    statement: String,
}

/// The result of a change.
#[derive(Debug, Serialize)]
struct Change {
    /// The number of the rule, from 1.
    number: usize,
    /// The generation of the configuration now in force.
    generation: u64,
}

/// Runs a command.
///
/// # Errors
/// When a text is not a rule, when the rules are not in the file of these commands, or when the policy with
/// the change does not come into force; nothing has changed then.
pub(super) fn run(output: &Output, command: &Command) -> Result<(), Failure> {
    match command {
        Command::List => {
            let rules = list_rules()?;
            // JSON of `usher mac ugidfw list`: a list of [`RuleView`].
            output.print(&rules, || rules_text(&rules));
            Ok(())
        }
        Command::Add { rule } => {
            let rule = statement(rule)?;
            change(output, |rules| {
                rules.push(rule);
                Ok(rules.len())
            })
        }
        Command::Set { number, rule } => {
            let rule = statement(rule)?;
            change(output, |rules| set_rule(rules, *number, rule))
        }
        Command::Remove { number } => change(output, |rules| {
            rules.remove(index(*number, rules)?);
            Ok(*number)
        }),
    }
}

/// Puts a rule in the place of the one with this number, or behind the last one if that is the next number.
fn set_rule(rules: &mut Vec<String>, number: usize, rule: String) -> Result<usize, Failure> {
    let next = rules.len() + 1;
    if number == next {
        rules.push(rule);
    } else if number > next {
        return Err(Failure::Refused(format!(
            "there is no rule {number}: numbers have no gaps here, and {next} is the next one; `usher mac ugidfw set {next}`, \
             or `add`, puts the rule behind the others"
        )));
    } else {
        let index = index(number, rules)?;
        rules[index] = rule;
    }
    Ok(number)
}

/// The index of the rule with this number.
fn index(number: usize, rules: &[String]) -> Result<usize, Failure> {
    let index = number.checked_sub(1).filter(|index| *index < rules.len());
    index.ok_or_else(|| {
        Failure::Refused(format!(
            "there is no rule {number}: {FILE} has {}; `usher mac ugidfw list` shows their numbers",
            rules.len()
        ))
    })
}

fn list_rules() -> Result<Vec<RuleView>, Failure> {
    let checked = configuration::check_applied(&configuration::in_force()?)?;
    let rules = rules_of(&checked.policy).iter().enumerate();
    let rules = rules.map(|(index, rule)| RuleView {
        number: index + 1,
        rule: words::rule_text(rule),
        statement: rule.to_string(),
    });
    Ok(rules.collect())
}

fn rules_text(rules: &[RuleView]) -> String {
    match rules {
        [] => "the policy in force has no rules of bsdextended\n".to_owned(),
        rules => table(
            ["NUMBER", "RULE"],
            rules.iter().map(|rule| row![rule.number, rule.rule]),
        ),
    }
}

/// The rules of a policy, which has one block of the module at most.
fn rules_of(policy: &Policy) -> &[AccessRule] {
    let settings = policy.mac.iter().map(|block| &block.settings);
    let mut rules = settings.filter_map(|settings| match settings {
        ModuleSettings::Bsdextended(rules) => Some(rules.as_slice()),
        _ => None,
    });
    rules.next().unwrap_or_default()
}

/// The words of a command line, or one text, as a statement of the policy.
fn statement(rule: &[String]) -> Result<String, Failure> {
    let number_of = |account: Account, name: &str| match account {
        Account::User => User::from_name(name)
            .ok()
            .flatten()
            .map(|user| user.uid.as_raw()),
        Account::Group => Group::from_name(name)
            .ok()
            .flatten()
            .map(|group| group.gid.as_raw()),
    };
    let statement = words::statement(&rule.join(" "), &number_of);
    let statement = statement.map_err(|mistake| Failure::Refused(mistake.to_string()))?;
    let source = Source {
        name: "rule".to_owned(),
        text: block(std::slice::from_ref(&statement)),
    };
    match usher_policy::parse_policy(std::slice::from_ref(&source)) {
        Ok(policy) => Ok(rules_of(&policy)[0].to_string()),
        Err(errors) => Err(Failure::Policy {
            errors,
            sources: vec![source],
        }),
    }
}

/// A block with these statements.
fn block(rules: &[String]) -> String {
    let rules: String = rules.iter().map(|rule| format!("  {rule};\n")).collect();
    format!("mac {MODULE} {{\n{rules}}}\n")
}

/// The rules of the file of these commands.
fn rules_of_file(source: &Source) -> Result<Vec<String>, Failure> {
    let by_hand = || {
        Failure::Refused(format!(
            "{} was changed by hand: move the block to another file of the policy, and change its rules \
             there",
            source.name
        ))
    };
    let policy = usher_policy::parse_policy(std::slice::from_ref(source)).map_err(|_| by_hand())?;
    let rules = rules_of(&policy);
    let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
    if source.text == text_of(&rules) {
        Ok(rules)
    } else {
        Err(by_hand())
    }
}

/// The file with these rules.
fn text_of(rules: &[String]) -> String {
    match rules {
        [] => HEAD.to_owned(),
        rules => format!("{HEAD}{}", block(rules)),
    }
}

/// Changes the rules of the file, and puts the policy in force.
fn change(
    output: &Output,
    edit: impl FnOnce(&mut Vec<String>) -> Result<usize, Failure>,
) -> Result<(), Failure> {
    let path = Path::new(paths::POLICY_DIRECTORY).join(FILE);
    let lock = configuration::lock()?;
    let former = configuration::read_applied()?;
    let in_force = configuration::in_force()?;
    // Groups are looked up anew with each policy.
    let unchanged = Applied {
        generation: in_force.generation,
        groups: in_force.groups.clone(),
        ..former.clone()
    };
    if unchanged != in_force {
        return Err(Failure::refused(
            "the files below /etc/usher are not those in force, and would come into force as well: see \
             `usher policy diff`, and apply or undo that first",
        ));
    }
    let is_own = |source: &&Source| Path::new(&source.name) == path;
    let source = former.sources.iter().find(is_own);
    if source.is_none() && !rules_of(&configuration::check_applied(&in_force)?.policy).is_empty() {
        return Err(Failure::refused(
            "the rules of bsdextended stand in another file of the policy: change them there, and \
             `usher policy apply`",
        ));
    }
    let mut rules = source.map_or_else(|| Ok(Vec::new()), rules_of_file)?;
    let number = edit(&mut rules)?;
    write_rules(
        &path,
        &rules,
        former.sources.iter().all(|source| is_own(&source)),
    )?;
    let outcome = policy::candidate().and_then(|(fresh, checked)| {
        policy::spare_ssh(&checked)?;
        let sources = fresh.sources.clone();
        let outcome = configuration::put_in_force(&lock, fresh, OnRefusal::RollBack)?;
        kept::keep(&in_force, &sources, outcome.generation);
        Ok(outcome)
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        // The change is in force despite the failure.
        Err(failure @ (Failure::KeeperUnreached(..) | Failure::NotTaken(..))) => {
            return Err(failure);
        }
        Err(failure) => {
            if let Err(error) = restore(&path, source) {
                warn(&format!("the former rules are not back in place: {error}"));
            }
            return Err(failure);
        }
    };
    let generation = outcome.generation;
    // JSON of `usher mac ugidfw add`, `usher mac ugidfw set`, `usher mac ugidfw remove`: [`Change`].
    output.print(&Change { number, generation }, || {
        configuration::describe(&outcome)
    });
    Ok(())
}

/// Writes the file. Without rules, removes it unless it is the policy's only file: a policy folder without
/// any file is not applied.
fn write_rules(path: &Path, rules: &[String], is_only: bool) -> Result<(), Failure> {
    if rules.is_empty() && !is_only {
        return remove_if_there(path).at(path);
    }
    let text = text_of(rules);
    write_atomically(path, text.as_bytes(), 0o644).at(path)
}

fn restore(path: &Path, former: Option<&Source>) -> Result<(), Failure> {
    match former {
        Some(source) => write_atomically(path, source.text.as_bytes(), 0o644).at(path),
        None => remove_if_there(path).at(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_set_in_a_place_or_behind_the_last_one() {
        let mut rules = Vec::new();
        let told = |failed: Result<usize, Failure>| failed.unwrap_err().to_string();
        assert!(told(set_rule(&mut rules, 2, "a".into())).contains("set 1`"));
        assert!(told(set_rule(&mut rules, 0, "a".into())).contains("there is no rule 0"));
        assert_eq!(set_rule(&mut rules, 1, "a".into()).unwrap(), 1);
        assert_eq!(set_rule(&mut rules, 2, "b".into()).unwrap(), 2);
        assert_eq!(set_rule(&mut rules, 1, "c".into()).unwrap(), 1);
        assert_eq!(rules, ["c", "b"]);
    }

    #[test]
    fn without_rules_the_only_file_stays_and_another_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        write_rules(&path, &[], true).unwrap();
        let source = Source {
            name: path.display().to_string(),
            text: std::fs::read_to_string(&path).unwrap(),
        };
        assert_eq!(rules_of_file(&source).unwrap(), [""; 0]);
        write_rules(&path, &[], false).unwrap();
        assert!(!path.exists());
    }
}
