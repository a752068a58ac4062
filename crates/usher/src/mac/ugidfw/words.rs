//! Converts rules from the form of FreeBSD's ugidfw(8) to statements of the policy's language, and back.
//!
//! ```text
//! subject not uid root object ! type d mode rx
//! rule subject not uid root object not type d mode rx
//! ```
//!
//! `!` negates the condition after it. `not` right after `subject` or `object` negates all conditions of that
//! side; both together cancel out. The policy's own reader checks the values, so only what is written
//! differently is looked at here.

use usher_policy::mac::bsdextended::{
    AccessRule, Membership, OBJECT_CONDITIONS as OBJECT, SUBJECT_CONDITIONS as SUBJECT,
};
use usher_policy::{Quoted, joined};

/// The accounts whose numbers a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Account {
    User,
    Group,
}

/// A text that is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mistake {
    #[error(
        "a rule is `subject [not] CONDITION ... object [not] CONDITION ... mode MODE`: `{0}` is missing"
    )]
    Missing(&'static str),
    #[error(
        "`{found}` is no condition of `{side}`: these are {}, each also with `!` before it; `not` stands \
         right after `{side}` only, and is about all conditions there", .conditions.join(", ")
    )]
    UnknownCondition {
        side: &'static str,
        found: String,
        conditions: &'static [&'static str],
    },
    #[error("Linux has no jails: leave `jailid` out")]
    Jail,
    #[error(
        "`new` stands before `object`: FreeBSD's Handbook has it there by mistake, and ugidfw(8) does not know it \
         either; leave it out"
    )]
    New,
    #[error("no condition stands behind this `!`: write one, or leave it out")]
    Nothing,
    #[error("no file has none of all types: leave `! type a` out, and the rule with it")]
    NoType,
    #[error(
        "{0:?} has characters that ugidfw's rules do not have: write such a rule into the policy itself"
    )]
    Characters(String),
    #[error("this host has no {noun} {name:?}, which begins or ends a range: write its number")]
    UnknownAccount { noun: &'static str, name: String },
}

/// Finds the number of an account by its name.
pub(super) type NumberOf<'a> = &'a dyn Fn(Account, &str) -> Option<u32>;

/// A rule as a statement of the policy, without `;`. The policy's reader checks its values.
///
/// # Errors
/// When the words are not in the order of a rule, or mean something that Linux does not have.
pub(super) fn statement(rule: &str, number_of: NumberOf<'_>) -> Result<String, Mistake> {
    let words: Vec<&str> = rule.split_whitespace().collect();
    if let Some(word) = words.iter().find(|word| !is_plain(word)) {
        return Err(Mistake::Characters((*word).to_owned()));
    }
    let words = words.as_slice();
    let words = words.strip_prefix(&["subject"]);
    let words = words.ok_or(Mistake::Missing("subject"))?;
    let object = words.iter().position(|word| *word == "object");
    let object = object.ok_or(Mistake::Missing("object"))?;
    let (subject, object) = (&words[..object], &words[object + 1..]);
    // Otherwise this `new`, behind a value, would be read as one more user.
    if let [.., before, "new"] = subject
        && !["uid", "gid"].contains(before)
        && number_of(Account::User, "new").is_none()
    {
        return Err(Mistake::New);
    }
    let mode = object.iter().position(|word| *word == "mode");
    let mode = mode.ok_or(Mistake::Missing("mode"))?;
    let (object, mode) = (&object[..mode], &object[mode + 1..]);
    let mut statement = "rule".to_owned();
    for (side, conditions, words) in [
        ("subject", SUBJECT.as_slice(), subject),
        ("object", OBJECT.as_slice(), object),
    ] {
        let read = read_side(side, conditions, words, number_of)?;
        if !read.is_empty() {
            statement += &format!(" {side} {}", read.join(" "));
        }
    }
    // The letter n is ignored beside other letters.
    let mode = match mode {
        [letters] if letters.len() > 1 => letters.replace('n', ""),
        words => words.join(" "),
    };
    Ok(format!("{statement} mode {mode}"))
}

/// Whether a word cannot end the statement, begin a comment or a text, or be read as two words.
fn is_plain(word: &str) -> bool {
    word.chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "_.-@+\\$:/!".contains(letter))
}

fn read_side(
    side: &'static str,
    conditions: &'static [&'static str],
    words: &[&str],
    number_of: NumberOf<'_>,
) -> Result<Vec<String>, Mistake> {
    let (all_turned, mut words) = match words {
        ["not", words @ ..] => (true, words),
        words => (false, words),
    };
    let mut found = Vec::new();
    while let [first, rest @ ..] = words {
        let (one_turned, word, rest) = match (*first, rest) {
            ("!", []) => return Err(Mistake::Nothing),
            ("!", [word, rest @ ..]) => (true, *word, rest),
            (word, rest) => (false, word, rest),
        };
        if side == "subject" && word == "jailid" {
            return Err(Mistake::Jail);
        }
        if !conditions.contains(&word) {
            let found = word.to_owned();
            return Err(Mistake::UnknownCondition {
                side,
                found,
                conditions,
            });
        }
        let ends = |word: &&str| ["!", "not", "jailid"].contains(word) || conditions.contains(word);
        let (values, next) = match word {
            "uid" | "gid" => {
                let end = rest.iter().position(ends).unwrap_or(rest.len());
                rest.split_at(end)
            }
            "filesys" | "type" => rest.split_at(rest.len().min(1)),
            _ => rest.split_at(0),
        };
        let turned = all_turned != one_turned;
        found.extend(condition(word, values, turned, number_of)?);
        words = next;
    }
    Ok(found)
}

/// A condition; none where it is met by every file.
fn condition(
    word: &str,
    values: &[&str],
    turned: bool,
    number_of: NumberOf<'_>,
) -> Result<Option<String>, Mistake> {
    let not = if turned { "not " } else { "" };
    let values = match word {
        "uid" => ranges(Account::User, values, number_of)?,
        "gid" => ranges(Account::Group, values, number_of)?,
        "filesys" => values.iter().map(|path| Quoted(path).to_string()).collect(),
        "type" if values.iter().any(|letters| letters.contains('a')) => {
            return if turned {
                Err(Mistake::NoType)
            } else {
                Ok(None)
            };
        }
        "type" => values.iter().map(|types| types.replace('-', "r")).collect(),
        _ => Vec::new(),
    };
    let values: String = values.iter().map(|value| format!(" {value}")).collect();
    Ok(Some(format!("{not}{word}{values}")))
}

/// Writes ranges by numbers, because ranges of the policy have no names.
fn ranges(
    account: Account,
    values: &[&str],
    number_of: NumberOf<'_>,
) -> Result<Vec<String>, Mistake> {
    let number = |name: &str| match name.parse::<u32>() {
        Ok(number) => Ok(number),
        Err(_) => number_of(account, name).ok_or_else(|| Mistake::UnknownAccount {
            noun: match account {
                Account::User => "user",
                Account::Group => "group",
            },
            name: name.to_owned(),
        }),
    };
    let values = values.iter().map(|value| match value.split_once(':') {
        Some((first, last)) => Ok(format!("{}:{}", number(first)?, number(last)?)),
        None => Ok((*value).to_owned()),
    });
    values.collect()
}

/// A rule of the policy in ugidfw's form, which reads back as the same rule.
pub(super) fn rule_text(rule: &AccessRule) -> String {
    let AccessRule {
        subject,
        object,
        mode,
        ..
    } = rule;
    let flag = |condition: &str, is: Option<bool>| Some(turned(!is?, condition));
    let conditions = [
        Some("subject".to_owned()),
        membership("uid", subject.users.as_ref()),
        membership("gid", subject.groups.as_ref()),
        Some("object".to_owned()),
        membership("uid", object.users.as_ref()),
        membership("gid", object.groups.as_ref()),
        object
            .file_system
            .as_ref()
            .map(|(is, path)| turned(!is, &format!("filesys {path}"))),
        flag("suid", object.suid),
        flag("sgid", object.sgid),
        flag("uid_of_subject", object.uid_of_subject),
        flag("gid_of_subject", object.gid_of_subject),
        object
            .types
            .as_ref()
            .map(|(is, types)| turned(!is, &format!("type {}", types.letters()))),
        Some(format!("mode {}", mode.letters())),
    ];
    joined(conditions.into_iter().flatten(), " ")
}

fn turned(not: bool, condition: &str) -> String {
    if not {
        format!("! {condition}")
    } else {
        condition.to_owned()
    }
}

fn membership(condition: &str, members: Option<&Membership>) -> Option<String> {
    let Membership { not, accounts } = members?;
    let condition = format!("{condition} {}", joined(accounts, " "));
    Some(turned(*not, &condition))
}

#[cfg(test)]
mod tests {
    use usher_policy::Source;
    use usher_policy::mac::ModuleSettings;

    use super::*;

    /// Accounts of FreeBSD.
    fn number_of(account: Account, name: &str) -> Option<u32> {
        let (users, groups) = (
            [("root", 0), ("daemon", 1), ("operator", 2), ("bin", 7)],
            [("wheel", 0), ("daemon", 1), ("operator", 5), ("bin", 7)],
        );
        let accounts = match account {
            Account::User => users,
            Account::Group => groups,
        };
        let found = accounts.into_iter().find(|(known, _)| *known == name);
        Some(found?.1)
    }

    /// The rule that the policy's reader makes of this text.
    fn rule(text: &str) -> AccessRule {
        let statement =
            statement(text, &number_of).unwrap_or_else(|error| panic!("{text}: {error}"));
        let source = Source {
            name: "rule".to_owned(),
            text: format!("mac bsdextended {{\n  {statement};\n}}\n"),
        };
        let policy = usher_policy::parse_policy(&[source]);
        let policy = policy.unwrap_or_else(|errors| panic!("{text}: {statement}: {errors:?}"));
        let ModuleSettings::Bsdextended(rules) = &policy.mac[0].settings else {
            panic!("{statement}");
        };
        AccessRule {
            origin: usher_policy::mac::bsdextended::AccessRule::default().origin,
            ..rules[0].clone()
        }
    }

    fn mistake(text: &str) -> Mistake {
        statement(text, &number_of).expect_err(text)
    }

    #[test]
    fn the_word_new_of_freebsds_handbook_is_named() {
        let text = "subject not uid root new object not uid root mode n";
        assert_eq!(mistake(text), Mistake::New);
        let statement = |text: &str| statement(text, &number_of).unwrap();
        assert_eq!(
            statement(&text.replace(" new", "")),
            "rule subject not uid root object not uid root mode n"
        );
        assert!(statement("subject uid new object mode n").contains("uid new"));
    }

    /// The kinds of rules that FreeBSD's own test of its library reads and prints.
    #[test]
    fn rules_read_and_print_as_on_freebsd() {
        let accounts = [("root", "root"), ("root", "daemon"), ("daemon", "root")];
        let accounts = accounts.into_iter().chain([("daemon", "daemon")]);
        let by_uid = accounts
            .clone()
            .map(|(subject, object)| format!("subject uid {subject} object uid {object} mode n"));
        let by_gid = accounts
            .map(|(subject, object)| format!("subject gid {subject} object gid {object} mode n"));
        let modes = ["a", "r", "s", "w", "x", "arswx"];
        let modes = modes.map(|mode| format!("subject uid root object uid root mode {mode}"));
        let types = ["r", "d", "b", "c", "l", "s", "p", "rbc", "dls"];
        let types = types.map(|types| format!("subject uid root object type {types} mode a"));
        let conditions = [
            "uid root",
            "gid wheel",
            "filesys /",
            "filesys /dev",
            "suid",
            "sgid",
            "uid_of_subject",
            "gid_of_subject",
            "type d",
        ];
        let objects = conditions.iter().flat_map(|condition| {
            ["", "! "].map(|turned| format!("subject object {turned}{condition} mode n"))
        });
        let subjects = conditions[..2].iter().flat_map(|condition| {
            ["", "! "].map(|turned| format!("subject {turned}{condition} object mode n"))
        });
        let others = [
            "subject object mode a",
            "subject uid bin gid daemon object uid operator gid wheel mode n",
            "subject ! uid 0:2 object ! uid_of_subject mode n",
            "subject uid root ! gid 0:7 object ! uid 0:1 gid daemon filesys / suid sgid \
             uid_of_subject gid_of_subject ! type r mode rsx",
            "subject uid alice 1000:1999 object mode r",
        ];
        let all: Vec<String> = by_uid
            .chain(by_gid)
            .chain(modes)
            .chain(types)
            .chain(objects)
            .chain(subjects)
            .chain(others.map(str::to_owned))
            .collect();
        assert_eq!(all.len(), 50);
        for one in all {
            assert_eq!(rule_text(&rule(&one)), one);
        }
    }

    #[test]
    fn other_spellings_mean_the_same() {
        for (spelling, same) in [
            (
                "subject not uid operator object uid bin mode n",
                "subject ! uid operator object uid bin mode n",
            ),
            (
                "subject not uid operator ! gid bin object not suid type d mode n",
                "subject ! uid operator gid bin object ! suid ! type d mode n",
            ),
            (
                "subject uid root:operator object gid wheel:bin mode n",
                "subject uid 0:2 object gid 0:7 mode n",
            ),
            (
                "subject uid root object type a mode a",
                "subject uid root object mode a",
            ),
            (
                "subject object type -d mode xnr",
                "subject object type rd mode rx",
            ),
        ] {
            assert_eq!(rule_text(&rule(spelling)), same);
            assert_eq!(rule(spelling), rule(same));
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_reason() {
        for (text, expected) in [
            ("", Mistake::Missing("subject")),
            ("object mode r", Mistake::Missing("subject")),
            ("subject mode r", Mistake::Missing("object")),
            ("subject object", Mistake::Missing("mode")),
            ("subject jailid 1 object mode n", Mistake::Jail),
            ("subject ! object mode n", Mistake::Nothing),
            ("subject object ! type a mode n", Mistake::NoType),
            (
                "subject object filesys \"/\" mode n",
                Mistake::Characters("\"/\"".to_owned()),
            ),
            (
                "subject object mode n; } mac portacl { port_high 1",
                Mistake::Characters("n;".to_owned()),
            ),
            (
                "subject uid root:nosuch object mode n",
                Mistake::UnknownAccount {
                    noun: "user",
                    name: "nosuch".to_owned(),
                },
            ),
            (
                "subject suid object mode n",
                Mistake::UnknownCondition {
                    side: "subject",
                    found: "suid".to_owned(),
                    conditions: &SUBJECT,
                },
            ),
            (
                "subject ! ! uid root object mode n",
                Mistake::UnknownCondition {
                    side: "subject",
                    found: "!".to_owned(),
                    conditions: &SUBJECT,
                },
            ),
            (
                "subject uid root not gid wheel object mode n",
                Mistake::UnknownCondition {
                    side: "subject",
                    found: "not".to_owned(),
                    conditions: &SUBJECT,
                },
            ),
            (
                "subject uid root object suid not sgid mode n",
                Mistake::UnknownCondition {
                    side: "object",
                    found: "not".to_owned(),
                    conditions: &OBJECT,
                },
            ),
        ] {
            assert_eq!(mistake(text), expected, "{text}");
        }
    }
}
