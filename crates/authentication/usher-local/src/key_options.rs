//! Options before a key in `authorized_keys` (sshd(8), "AUTHORIZED_KEYS FILE FORMAT"). Usher takes the
//! options of OpenSSH that mean the same here.

use chrono::{Local, NaiveDateTime};
use usher_proto::Principals;

/// Options about sessions of sshd: forwarding, a terminal, a start file. Services of Usher have none of
/// these, so the options have no effect.
const WITHOUT_MEANING: [&str; 14] = [
    "agent-forwarding",
    "no-agent-forwarding",
    "no-port-forwarding",
    "no-pty",
    "no-user-rc",
    "no-x11-forwarding",
    "permitlisten",
    "permitopen",
    "port-forwarding",
    "pty",
    "restrict",
    "tunnel",
    "user-rc",
    "x11-forwarding",
];

/// Options that restrict a key in sshd but would not here.
const NOT_TAKEN: [(&str, &str); 5] = [
    ("command", "the policy's `service` names the program"),
    (
        "environment",
        "a service's `environment` in the policy sets variables",
    ),
    (
        "from",
        "a service's `hosts` in the policy restricts the hosts",
    ),
    ("no-touch-required", "remove it, or use another key"),
    ("verify-required", "remove it, or use another key"),
];

/// The fault of a key's options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionProblem {
    /// An option that would have no effect.
    #[error("Usher does not take the option `{name}`: {instead}")]
    NotTaken {
        /// Its name.
        name: String,
        /// The alternative.
        instead: &'static str,
    },
    /// A name that OpenSSH does not have.
    #[error("there is no option `{0}`: see AUTHORIZED_KEYS FILE FORMAT in sshd(8)")]
    Unknown(String),
    /// A value is missing, not in quotes, or has no end.
    #[error("the option `{0}` has no value in double quotes: write {0}=\"VALUE\"")]
    Value(String),
    /// An invalid time.
    #[error(
        "`{0}` is not a time: write expiry-time=\"YYYYMMDDZ\" or \"YYYYMMDDHHMM[SS]Z\", \
         where Z means UTC"
    )]
    Time(String),
    /// An invalid list of principals.
    #[error("`{0}` is not a list of principals: write principals=\"NAME,NAME\", 511 bytes at most")]
    Principals(String),
    /// Principals for a key that is no authority.
    #[error("`principals` is for authorities only: write cert-authority,principals=\"...\"")]
    PrincipalsOfAKey,
    /// The separator between two options is not a comma.
    #[error("the options are not separated by commas")]
    Separator,
}

/// The options of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyOptions {
    /// The time when the key expires, in seconds since 1970: the earliest `expiry-time`.
    pub expires: Option<u64>,
    /// Whether the key is an authority: it opens no session, and the keys that it certifies do.
    pub authority: bool,
    /// For an authority: the principals of certificates that may act as the user. None: only the user's
    /// name.
    pub principals: Option<Principals>,
}

/// One option, as written.
struct Written<'a> {
    name: &'a str,
    /// The text between the quotes.
    value: Option<&'a str>,
}

impl KeyOptions {
    /// Reads the text before a key.
    ///
    /// # Errors
    /// The first option that is wrong or not taken.
    pub fn parse(text: &str) -> Result<Self, OptionProblem> {
        let mut options = Self::default();
        for option in written(text) {
            let Written { name, value } = option?;
            let lower = name.to_ascii_lowercase();
            let needed = || value.ok_or_else(|| OptionProblem::Value(lower.clone()));
            if lower == "expiry-time" {
                let value = needed()?;
                let time = utc(value).ok_or_else(|| OptionProblem::Time(value.to_owned()))?;
                options.expires = Some(options.expires.map_or(time, |former| former.min(time)));
            } else if lower == "cert-authority" {
                options.authority = true;
            } else if lower == "principals" {
                let value = needed()?;
                let principals = value.parse().ok().filter(|_| !value.is_empty());
                let wrong = || OptionProblem::Principals(value.to_owned());
                // sshd refuses a second such option, too.
                if options.principals.is_some() {
                    return Err(wrong());
                }
                options.principals = Some(principals.ok_or_else(wrong)?);
            } else if let Some((_, instead)) = NOT_TAKEN.iter().find(|(name, _)| *name == lower) {
                let name = lower;
                return Err(OptionProblem::NotTaken { name, instead });
            } else if !WITHOUT_MEANING.contains(&lower.as_str()) {
                return Err(OptionProblem::Unknown(name.to_owned()));
            }
        }
        if options.principals.is_some() && !options.authority {
            return Err(OptionProblem::PrincipalsOfAKey);
        }
        Ok(options)
    }
}

/// Splits a line into its options and its key, at the first space that is not in quotes.
pub fn split(line: &str) -> (&str, &str) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, character) in line.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ' ' | '\t' if !quoted => return (&line[..at], line[at..].trim_start()),
            _ => {}
        }
    }
    (line, "")
}

/// The options in a text, up to the first wrong one.
fn written(text: &str) -> impl Iterator<Item = Result<Written<'_>, OptionProblem>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let option = next_option(rest?);
        rest = option.as_ref().map_or(None, |(_, rest)| *rest);
        Some(option.map(|(option, _)| option))
    })
}

type Next<'a> = (Written<'a>, Option<&'a str>);

fn next_option(text: &str) -> Result<Next<'_>, OptionProblem> {
    let end = text.find(['=', ',']).unwrap_or(text.len());
    let (name, after) = text.split_at(end);
    let Some(after) = after.strip_prefix('=') else {
        return Ok((Written { name, value: None }, after.strip_prefix(',')));
    };
    let without_end = || OptionProblem::Value(name.to_owned());
    let after = after.strip_prefix('"').ok_or_else(without_end)?;
    let mut escaped = false;
    let end = after
        .find(|character| match character {
            _ if escaped => {
                escaped = false;
                false
            }
            '\\' => {
                escaped = true;
                false
            }
            character => character == '"',
        })
        .ok_or_else(without_end)?;
    let value = Some(&after[..end]);
    let rest = match &after[end + 1..] {
        "" => None,
        rest => Some(rest.strip_prefix(',').ok_or(OptionProblem::Separator)?),
    };
    Ok((Written { name, value }, rest))
}

/// Reads a time of `expiry-time` in UTC, as seconds since 1970.
pub fn utc(text: &str) -> Option<u64> {
    let time = time(text.strip_suffix(['Z', 'z'])?)?;
    u64::try_from(time.and_utc().timestamp()).ok()
}

/// Reads a time of `expiry-time`, as seconds since 1970. Without a zone it is this host's local time; an
/// ambiguous one is the earlier time.
pub fn seconds(text: &str) -> Option<u64> {
    utc(text).or_else(|| {
        let local = time(text)?.and_local_timezone(Local).earliest()?;
        u64::try_from(local.timestamp()).ok()
    })
}

/// Reads a time of `expiry-time` without its zone: a date, with hours and minutes or not, with seconds
/// or not.
fn time(text: &str) -> Option<NaiveDateTime> {
    let is_time =
        [8, 12, 14].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let parse = || NaiveDateTime::parse_from_str(&format!("{text:0<14}"), "%Y%m%d%H%M%S");
    is_time.then(parse)?.ok()
}

/// Formats a time for `expiry-time`, in UTC; none beyond the year 9999.
pub fn expiry_time(seconds: u64) -> Option<String> {
    let time = chrono::DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0)?;
    let text = time.format("%Y%m%d%H%M%SZ").to_string();
    (text.len() == 15).then_some(text)
}

/// Rewrites the times of a list in UTC. Times without a zone are this host's local time, as for sshd; the
/// daemons cannot know the zone in their sandboxes. The check reports invalid times.
pub fn in_utc(list: &str) -> String {
    let mut out = String::with_capacity(list.len());
    for line in list.split_inclusive('\n') {
        let (options, _) = split(line.trim_start());
        let times = written(options).flatten().filter_map(|option| {
            let is_time = option.name.eq_ignore_ascii_case("expiry-time");
            let value = option
                .value
                .filter(|value| is_time && utc(value).is_none())?;
            Some((value, expiry_time(seconds(value)?)?))
        });
        let line = times.fold(line.to_owned(), |line, (local, utc)| {
            line.replacen(&format!("\"{local}\""), &format!("\"{utc}\""), 1)
        });
        out.push_str(&line);
    }
    out
}

#[cfg(test)]
mod tests {
    use chrono::{NaiveDate, NaiveTime};

    use super::*;

    #[test]
    fn the_earliest_expiry_counts() {
        let expires = |text| KeyOptions::parse(text).map(|options| options.expires);
        assert_eq!(expires("expiry-time=\"19700102Z\""), Ok(Some(86_400)));
        assert_eq!(expires("expiry-time=\"197001020001Z\""), Ok(Some(86_460)));
        assert_eq!(
            expires("restrict,Expiry-Time=\"19700102000102Z\",permitopen=\"a:1\",no-pty"),
            Ok(Some(86_462))
        );
        assert_eq!(
            expires("expiry-time=\"19710101Z\",expiry-time=\"19700102Z\""),
            Ok(Some(86_400))
        );
        assert_eq!(expires("no-X11-forwarding"), Ok(None));
    }

    #[test]
    fn an_authority_has_principals_and_a_key_has_none() {
        let parsed = |text| KeyOptions::parse(text);
        let authority = KeyOptions {
            authority: true,
            ..KeyOptions::default()
        };
        assert_eq!(parsed("Cert-Authority"), Ok(authority.clone()));
        let named = KeyOptions {
            principals: Some("ops,alice@example.org".parse().unwrap()),
            ..authority
        };
        let text = "restrict,principals=\"ops,alice@example.org\",cert-authority";
        assert_eq!(parsed(text), Ok(named));
        assert_eq!(
            parsed("principals=\"ops\""),
            Err(OptionProblem::PrincipalsOfAKey)
        );
        for wrong in ["", "ops,", ",ops", "ops,,dev", "o\tps"] {
            let text = format!("cert-authority,principals=\"{wrong}\"");
            let problem = OptionProblem::Principals(wrong.into());
            assert_eq!(KeyOptions::parse(&text), Err(problem));
        }
        let twice = "cert-authority,principals=\"ops\",principals=\"dev\"";
        assert_eq!(parsed(twice), Err(OptionProblem::Principals("dev".into())));
    }

    #[test]
    fn a_statement_that_binds_no_one_is_refused_with_an_alternative() {
        for (text, name) in [
            ("command=\"/bin/false\"", "command"),
            ("from=\"10.0.0.0/8\"", "from"),
            ("restrict,FROM=\"10.0.0.0/8\"", "from"),
        ] {
            match KeyOptions::parse(text) {
                Err(OptionProblem::NotTaken { name: found, .. }) => assert_eq!(found, name),
                other => panic!("{text}: {other:?}"),
            }
        }
        for (text, problem) in [
            ("pseudo", OptionProblem::Unknown("pseudo".into())),
            ("", OptionProblem::Unknown(String::new())),
            ("restrict,", OptionProblem::Unknown(String::new())),
            ("expiry-time", OptionProblem::Value("expiry-time".into())),
            (
                "expiry-time=19700102Z",
                OptionProblem::Value("expiry-time".into()),
            ),
            (
                "expiry-time=\"19700102Z",
                OptionProblem::Value("expiry-time".into()),
            ),
            (
                "expiry-time=\"19700102Z\"restrict",
                OptionProblem::Separator,
            ),
            (
                "expiry-time=\"19700102\"",
                OptionProblem::Time("19700102".into()),
            ),
            (
                "expiry-time=\"19701302Z\"",
                OptionProblem::Time("19701302Z".into()),
            ),
            ("expiry-time=\"+1d\"", OptionProblem::Time("+1d".into())),
            ("expiry-time=\"\"", OptionProblem::Time(String::new())),
        ] {
            assert_eq!(KeyOptions::parse(text), Err(problem), "{text}");
        }
    }

    #[test]
    fn options_end_at_the_first_space_outside_of_quotes() {
        let line = r#"permitopen="a \" b",restrict ssh-ed25519 AAAA c"#;
        assert_eq!(split(line).1, "ssh-ed25519 AAAA c");
        assert_eq!(split("ssh-ed25519"), ("ssh-ed25519", ""));
    }

    #[test]
    fn local_times_become_those_of_utc_and_nothing_else_is_touched() {
        let list = "# expiry-time=\"20300101\"\nexpiry-time=\"20300101\" ssh-ed25519 AAAA \"20300101\"\r\n";
        let time = NaiveDate::from_ymd_opt(2030, 1, 1)
            .unwrap()
            .and_time(NaiveTime::MIN);
        let local = time.and_local_timezone(Local).earliest().unwrap();
        let expected = expiry_time(local.timestamp().unsigned_abs()).unwrap();
        assert_eq!(
            in_utc(list),
            list.replacen(
                "\nexpiry-time=\"20300101\"",
                &format!("\nexpiry-time=\"{expected}\""),
                1
            )
        );
        for same in [
            "expiry-time=\"20300101Z\" x",
            "expiry-time=\"2030\" x",
            "expiry-time=\"20300101 x",
        ] {
            assert_eq!(in_utc(same), same);
        }
    }

    #[test]
    fn a_time_goes_there_and_back() {
        assert_eq!(expiry_time(86_462).as_deref(), Some("19700102000102Z"));
        assert_eq!(utc("19700102000102Z"), Some(86_462));
        assert_eq!(expiry_time(u64::MAX), None);
    }
}
