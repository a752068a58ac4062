//! mac.login: the labels that users get at login.
//!
//! A line is `user NAME LABEL`, `group NAME LABEL` or `default LABEL`; `-` in place of a label is none. One
//! line decides for a user: the user's own, else the first line with one of the user's groups, else
//! `default`. Labels of several lines are not merged.

use std::collections::BTreeMap;
use std::fmt;

use usher_language::{Diagnostic, Found, Reporter, Source, Span, nearest};

use crate::defaults::{at, begin, length_mistake, within};
use crate::label::Label;
use crate::limits::{MAXIMUM_ACCOUNT_NAME, MAXIMUM_LOGIN_GROUPS, MAXIMUM_LOGIN_USERS};
use crate::mistake::LoginMistake;
use crate::words::{numbered_lines, words};

/// The users to whom a line applies. Displays as in the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoginSubject {
    /// The account of this name.
    User(String),
    /// All accounts of this group, whether it is their primary one or not.
    Group(String),
    /// All other accounts.
    Default,
}

impl fmt::Display for LoginSubject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(formatter, "user {name}"),
            Self::Group(name) => write!(formatter, "group {name}"),
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginLine {
    /// Line of the file, counted from 1.
    pub line: usize,
    /// The users to whom it applies.
    pub subject: LoginSubject,
    /// The label; `None` for `-`.
    pub label: Option<Label>,
}

/// The labels of users at login.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginLabels {
    users: BTreeMap<String, LoginLine>,
    /// In the order of the file.
    groups: Vec<LoginLine>,
    default: Option<LoginLine>,
}

impl LoginLabels {
    /// Reads a whole file. `#` begins a comment. With a file without a line, no user gets a label.
    ///
    /// # Errors
    ///
    /// All mistakes, with their places; nothing of such a file is used.
    pub fn parse(source: Source) -> Result<Self, Vec<Diagnostic>> {
        let sources = [source];
        let reporter = Reporter::new(&sources);
        let labels = Self::read(&sources[0].text, &reporter);
        match reporter.finish() {
            found if found.is_empty() => Ok(labels),
            found => Err(found),
        }
    }

    /// The lines: users by name, groups in the order of the file, then `default`.
    pub fn lines(&self) -> impl Iterator<Item = &LoginLine> {
        let users = self.users.values();
        users.chain(&self.groups).chain(&self.default)
    }

    /// The line that decides for a user; `None` where none does. `is_member` says whether the user is in a
    /// group; it is asked only about groups whose lines may decide, in their order.
    ///
    /// # Errors
    ///
    /// The first error of `is_member`: which line decides is not known then.
    pub fn decide<E>(
        &self,
        user: &str,
        mut is_member: impl FnMut(&str) -> Result<bool, E>,
    ) -> Result<Option<&LoginLine>, E> {
        if let Some(own) = self.users.get(user) {
            return Ok(Some(own));
        }
        for line in &self.groups {
            if let LoginSubject::Group(name) = &line.subject
                && is_member(name)?
            {
                return Ok(Some(line));
            }
        }
        Ok(self.default.as_ref())
    }

    fn read(text: &str, reporter: &Reporter<'_>) -> Self {
        let mut labels = Self::default();
        if let Some(too_long) = length_mistake(text) {
            reporter.report(begin(), too_long);
            return labels;
        }
        for (index, (offset, line)) in numbered_lines(text).enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words = words(offset, line);
            if words.is_empty() {
                continue;
            }
            if let Some(read) = read_line(index + 1, &words, reporter) {
                labels.add(read, words[0].0, reporter);
            }
            if reporter.is_full() {
                return labels;
            }
        }
        labels
    }

    fn add(&mut self, line: LoginLine, place: Span, reporter: &Reporter<'_>) {
        let former = match &line.subject {
            LoginSubject::User(name) => self.users.get(name),
            LoginSubject::Group(_) => {
                let mut groups = self.groups.iter();
                groups.find(|other| other.subject == line.subject)
            }
            LoginSubject::Default => self.default.as_ref(),
        };
        if let Some(former) = former {
            let mistake = LoginMistake::Repeated {
                subject: line.subject.to_string(),
                line: former.line,
            };
            reporter.report(at(place), mistake);
            return;
        }
        match &line.subject {
            LoginSubject::User(_) if self.users.len() == MAXIMUM_LOGIN_USERS => {
                reporter.report(at(place), LoginMistake::TooManyUsers);
            }
            LoginSubject::User(name) => {
                self.users.insert(name.clone(), line);
            }
            LoginSubject::Group(_) if self.groups.len() == MAXIMUM_LOGIN_GROUPS => {
                reporter.report(at(place), LoginMistake::TooManyGroups);
            }
            LoginSubject::Group(_) => self.groups.push(line),
            LoginSubject::Default => self.default = Some(line),
        }
    }
}

/// The statements with their forms.
const STATEMENTS: [(&str, &str); 3] = [
    ("user", "user NAME LABEL"),
    ("group", "group NAME LABEL"),
    ("default", "default LABEL"),
];

fn read_line(number: usize, words: &[(Span, &str)], reporter: &Reporter<'_>) -> Option<LoginLine> {
    let (place, statement) = words[0];
    let Some(&(_, form)) = STATEMENTS.iter().find(|(known, _)| *known == statement) else {
        let mistake = LoginMistake::UnknownStatement {
            found: Found::from(statement),
            nearest: nearest(statement, STATEMENTS.iter().map(|(known, _)| *known)),
        };
        return reporter.refuse(at(place), mistake);
    };
    let (subject, (span, text)) = match (statement, &words[1..]) {
        ("user", [name, label]) => (LoginSubject::User(account(*name, reporter)?), *label),
        ("group", [name, label]) => (LoginSubject::Group(account(*name, reporter)?), *label),
        ("default", [label]) => (LoginSubject::Default, *label),
        _ => {
            let statement = statement.to_owned();
            let mistake = LoginMistake::WrongForm { statement, form };
            return reporter.refuse(at(place), mistake);
        }
    };
    let label = match text {
        "-" => None,
        text => match text.parse::<Label>() {
            Ok(label) => Some(label),
            Err(error) => return reporter.refuse(within(span, error.span), error.mistake),
        },
    };
    Some(LoginLine {
        line: number,
        subject,
        label,
    })
}

fn account((place, name): (Span, &str), reporter: &Reporter<'_>) -> Option<String> {
    if is_account(name) {
        Some(name.to_owned())
    } else {
        let found = Found::from(name);
        reporter.refuse(at(place), LoginMistake::InvalidName { found })
    }
}

/// Whether the name service may have an account or a group of this name. With a domain it has `@`, `\` or
/// `+` in it, and accounts of machines end with `$`.
fn is_account(name: &str) -> bool {
    let is_letter = |one: u8| one.is_ascii_alphanumeric() || b"_.-@\\+$".contains(&one);
    (1..=MAXIMUM_ACCOUNT_NAME).contains(&name.len())
        && !name.starts_with(['-', '+', '$', '@'])
        && name.bytes().all(is_letter)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn parse(text: &str) -> Result<LoginLabels, Vec<Diagnostic>> {
        LoginLabels::parse(Source {
            name: "mac.login".to_owned(),
            text: text.to_owned(),
        })
    }

    fn decided(labels: &LoginLabels, user: &str, groups: &[&str]) -> Option<(usize, String)> {
        let is_member = |group: &str| Ok::<_, Infallible>(groups.contains(&group));
        let Ok(line) = labels.decide(user, is_member);
        line.map(|line| {
            let label = line.label.as_ref().map(ToString::to_string);
            (line.line, label.unwrap_or_else(|| "-".to_owned()))
        })
    }

    const FILE: &str = "# Who works with what\n\
        default   biba/low\n\
        group students  biba/5,partition/3 # all of them\n\
        group\tstaff\tbiba/9\n\
        user alice biba/10(low-10),partition/3\n\
        user root -\n";

    #[test]
    fn the_own_line_counts_before_groups_and_groups_before_default() {
        let labels = parse(FILE).unwrap();
        let found = |user, groups: &[&str]| decided(&labels, user, groups).unwrap();
        let own = "biba/10(low-10),partition/3";
        assert_eq!(found("alice", &["students"]), (5, own.to_owned()));
        let students = (3, "biba/5,partition/3".to_owned());
        assert_eq!(found("bob", &["staff", "students"]), students);
        assert_eq!(found("carol", &["staff"]), (4, "biba/9".to_owned()));
        assert_eq!(found("dave", &["others"]), (2, "biba/low".to_owned()));
        assert_eq!(found("root", &["staff"]), (6, "-".to_owned()));
        assert_eq!(labels.lines().count(), 5);
    }

    #[test]
    fn without_a_line_of_theirs_users_get_nothing() {
        let labels = parse("user alice biba/low\n").unwrap();
        assert_eq!(decided(&labels, "bob", &["alice"]), None);
        assert_eq!(decided(&parse("# nobody\n").unwrap(), "alice", &[]), None);
    }

    // Threat model: M64
    #[test]
    fn a_group_is_asked_about_only_where_its_line_may_decide() {
        let labels = parse(FILE).unwrap();
        let fails = |_: &str| Err("the name service does not answer");
        assert!(labels.decide("alice", fails).is_ok());
        assert!(labels.decide("bob", fails).is_err());
        let first_only = |group: &str| match group {
            "students" => Ok(true),
            other => Err(other.to_owned()),
        };
        assert_eq!(labels.decide("bob", first_only).unwrap().unwrap().line, 3);
    }

    #[test]
    fn each_mistake_of_mac_login_names_its_place_and_a_remedy() {
        for (text, told, remedy) in [
            (
                "users alice biba/low\n",
                "mac.login:1:1: there is no statement `users`",
                "did you mean `user`?",
            ),
            (
                "alice biba/low\n",
                "mac.login:1:1: there is no statement `alice`",
                "write `user NAME LABEL`",
            ),
            (
                "\nuser alice\n",
                "mac.login:2:1: `user` has too few or too many words",
                "write `user NAME LABEL`",
            ),
            (
                "default biba/low mls/low\n",
                "mac.login:1:1: `default` has too few or too many words",
                "write `default LABEL`",
            ),
            (
                "group a,b biba/low\n",
                "mac.login:1:7: `a,b` is not the name of a user or group",
                "a name has",
            ),
            (
                "user -x biba/low\n",
                "mac.login:1:6: `-x` is not the name",
                "a name has",
            ),
            (
                "user alice biba/low,mls\n",
                "mac.login:1:21: the element `mls` has no value",
                "write it as",
            ),
            (
                "user a biba/low\ndefault -\nuser a -\n",
                "mac.login:3:1: `user a` stands in line 1 already",
                "once",
            ),
            (
                "default -\ndefault -\n",
                "mac.login:2:1: `default` stands in line 1 already",
                "once",
            ),
        ] {
            let found = parse(text).unwrap_err();
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].to_string().starts_with(told), "{}", found[0]);
            assert!(found[0].remedy().contains(remedy), "{}", found[0].remedy());
        }
    }

    #[test]
    fn one_user_or_group_too_many_is_refused() {
        let of = |statement: &str, count: usize| {
            let lines = (0..count).map(|number| format!("{statement} n{number} -\n"));
            parse(&lines.collect::<String>())
        };
        assert!(of("group", MAXIMUM_LOGIN_GROUPS).is_ok());
        let found = of("group", MAXIMUM_LOGIN_GROUPS + 1).unwrap_err();
        assert!(found[0].to_string().contains("more than 256 groups"));
        assert!(of("user", MAXIMUM_LOGIN_USERS).is_ok());
        let found = of("user", MAXIMUM_LOGIN_USERS + 1).unwrap_err();
        assert!(found[0].to_string().contains("more than 16384 users"));
    }
}
