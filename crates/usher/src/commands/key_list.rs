//! A user's list of public keys, one a line, as `usher user add` and `remove` change it.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use usher_base::UserName;
use usher_daemon::clock::unix_time;
use usher_daemon::files::write_atomically;
use usher_local::key_options;
use usher_local::keys::{self, Fingerprint, LIST, UserKey, parse_keys};
use usher_local::paths;
use usher_local::reading::{optional, read_bounded};
use usher_policy::Moment;
use usher_proto::RevokedKeys;

use crate::failure::{At, Failure};

/// The time when a key expires, in seconds since 1970. In the future when it is read.
#[derive(Debug, Clone, Copy)]
pub struct Expiry(u64);

impl FromStr for Expiry {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let form = "not a time: give a length from now, a whole number with s, m, h, d or w, or a \
                    date and time in UTC, 2026-12-31T18:00Z, or as OpenSSH writes them, YYYYMMDD or \
                    YYYYMMDDHHMM[SS], with Z at its end for UTC";
        let now = unix_time();
        let seconds = length(text)
            .map(|length| now.saturating_add(length))
            .or_else(|| text.parse::<Moment>().ok().map(Moment::unix_time))
            .or_else(|| key_options::seconds(text))
            .filter(|seconds| key_options::expiry_time(*seconds).is_some())
            .ok_or_else(|| Failure::refused(form))?;
        if seconds <= now {
            return Err(Failure::refused("that time has passed"));
        }
        Ok(Self(seconds))
    }
}

/// A duration in seconds.
fn length(text: &str) -> Option<u64> {
    let units = [
        ('s', 1),
        ('m', 60),
        ('h', 3600),
        ('d', 86_400),
        ('w', 604_800),
    ];
    let (number, unit) = units
        .into_iter()
        .find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, unit)))?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.then(|| number.parse().ok())??;
    number.checked_mul(unit)
}

/// Describes a user's keys, for people: their number for each purpose, and when they expire.
pub fn describe(keys: &[UserKey], revoked: &RevokedKeys) -> String {
    let mut lists: Vec<String> = keys
        .chunk_by(|one, other| one.purpose == other.purpose)
        .map(|keys| {
            let authorities = keys.iter().filter(|key| key.options.authority).count();
            let mut number = match (keys.len() - authorities, authorities) {
                (keys, 0) => keys.to_string(),
                (0, 1) => "1 authority".into(),
                (0, authorities) => format!("{authorities} authorities"),
                (keys, authorities) => format!("{keys} and {authorities} authorities"),
            };
            if let Some(purpose) = &keys[0].purpose {
                number += &format!(" for {purpose}");
            }
            let ends: Vec<String> = keys
                .iter()
                .filter_map(|key| end_of_key(key, revoked))
                .collect();
            match ends.as_slice() {
                [] => number,
                ends => format!("{number} ({})", counted(ends, keys.len())),
            }
        })
        .collect();
    if lists.is_empty() {
        lists.push("0".into());
    }
    lists.join(", ")
}

/// How some of `of` keys have ended, as text: "1 of 2 revoked", or "revoked" for the only key.
fn counted(ends: &[String], of: usize) -> String {
    let mut ends = ends.to_vec();
    ends.sort();
    let parts = ends.chunk_by(|one, other| one == other);
    let parts = parts.map(|same| match (same.len(), of) {
        (1, 1) => same[0].clone(),
        (count, of) if count == of => format!("all {}", same[0]),
        (count, of) => format!("{count} of {of} {}", same[0]),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn end_of_key(key: &UserKey, revoked: &RevokedKeys) -> Option<String> {
    if revoked.has_key(&key.key) {
        return Some("revoked".into());
    }
    let expires = key.options.expires?;
    Some(if key.has_expired(unix_time()) {
        "expired".into()
    } else {
        format!("until {}", super::log::utc(expires))
    })
}

/// A line that adds a key, and its key.
pub struct Line {
    text: String,
    key: UserKey,
}

/// Reads the keys of a `.pub` file or a list, and adds their time of expiry.
///
/// # Errors
/// When it holds no key, or something else. An authority is refused: its holder can certify any key and
/// name roles, so an administrator must look at such a line of a file that a user sent.
pub fn read_key_list(
    user: &UserName,
    path: &Path,
    expires: Option<Expiry>,
) -> Result<Vec<Line>, Failure> {
    let text = read_bounded(path)?;
    let found = parse_file(user, &text).map_err(|error| Failure::of_file(path, error))?;
    if found.iter().any(|key| key.options.authority) {
        let list = Path::new(paths::USERS_DIRECTORY).join(user.as_ref());
        let reason = format!(
            "has a cert-authority line, which lets another key certify keys and principals of \
             {user}; if you want that, write the line into {} yourself, then `usher policy apply`",
            list.join(LIST).display()
        );
        return Err(Failure::of_file(path, reason));
    }
    keys::key_lines(&text)
        .zip(found)
        .map(|((_, line), key)| {
            let Some(time) = expires.and_then(|Expiry(at)| key_options::expiry_time(at)) else {
                let text = line.to_owned();
                return Ok(Line { text, key });
            };
            if key.options.expires.is_some() {
                let reason = "says when the key expires; give only one of that and --expires";
                return Err(Failure::of_file(path, reason));
            }
            let has_options = usher_proto::key::parse_line(line).is_err();
            let separator = if has_options { ',' } else { ' ' };
            let text = format!("expiry-time=\"{time}\"{separator}{line}");
            Ok(Line { text, key })
        })
        .collect()
}

/// The keys of a file that [`read_key_list`] would take, authorities included.
pub fn parse_file(user: &UserName, text: &str) -> Result<Vec<UserKey>, Failure> {
    if text.trim_start().starts_with("-----BEGIN ") && text.contains("PRIVATE KEY-----") {
        return Err(Failure::refused(
            "this is a private key, which should stay where it is; give the public key of it, in the file \
             with .pub at its end",
        ));
    }
    let found = parse_keys(user, None, text)?;
    if found.is_empty() {
        return Err(Failure::refused("holds no public key"));
    }
    Ok(found)
}

/// The key of a line. The check of the whole list reports wrong lines.
fn key_of(user: &UserName, line: &str) -> Option<UserKey> {
    parse_keys(user, None, line).ok()?.pop()
}

/// A list without the lines of these keys, and the keys that it had.
pub fn without(
    user: &UserName,
    list: &str,
    keys: &BTreeSet<Fingerprint>,
) -> (String, BTreeSet<Fingerprint>) {
    let mut taken = BTreeSet::new();
    let mut rest = String::new();
    for line in list.lines() {
        match key_of(user, line).filter(|key| keys.contains(&key.fingerprint)) {
            Some(key) => {
                taken.insert(key.fingerprint);
            }
            None => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    (rest, taken)
}

/// Adds lines to a list. Each replaces the lines with the same key; the rest of the file stays.
pub fn add_keys(user: &UserName, path: &Path, fresh: &[Line]) -> Result<(), Failure> {
    let list = optional(read_bounded(path))?.unwrap_or_default();
    let list = merge(user, &list, fresh);
    write_atomically(path, list.as_bytes(), 0o644).at(path)
}

fn merge(user: &UserName, list: &str, fresh: &[Line]) -> String {
    let mut added = vec![false; fresh.len()];
    let mut lines: Vec<&str> = Vec::new();
    for line in list.lines() {
        let place = key_of(user, line).and_then(|key| {
            fresh
                .iter()
                .position(|line| line.key.fingerprint == key.fingerprint)
        });
        match place {
            None => lines.push(line),
            Some(place) if !added[place] => {
                added[place] = true;
                lines.push(&fresh[place].text);
            }
            Some(_) => {}
        }
    }
    let rest = fresh.iter().zip(&added).filter(|(_, added)| !**added);
    lines.extend(rest.map(|(line, _)| line.text.as_str()));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 2] = [
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t",
    ];

    #[test]
    fn lengths_and_dates_are_taken_and_the_past_is_not() {
        let now = unix_time();
        let Expiry(two_days) = "2d".parse().unwrap();
        assert!((now + 2 * 86_400..now + 2 * 86_400 + 60).contains(&two_days));
        // The form of the policy and of all output, and OpenSSH's form.
        for date in ["2999-01-02T00:00Z", "2999-01-02T00:00:00Z", "29990102Z"] {
            assert_eq!(date.parse::<Expiry>().unwrap().0, 32_472_230_400, "{date}");
        }
        for wrong in [
            "20200101Z",
            "0s",
            "2",
            "d",
            "-1d",
            "+1d",
            "2y",
            "2999-01-02",
        ] {
            wrong.parse::<Expiry>().unwrap_err();
        }
        format!("{}w", u64::MAX).parse::<Expiry>().unwrap_err();
    }

    #[test]
    fn a_key_has_one_line_and_the_others_stay() {
        let alice: UserName = "alice".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (file, list) = (folder.path().join("key.pub"), folder.path().join("list"));
        let read = |text: &str, expires: Option<&str>| {
            std::fs::write(&file, text).unwrap();
            read_key_list(&alice, &file, expires.map(|time| time.parse().unwrap()))
        };
        let [first, second] = KEYS;
        std::fs::write(
            &list,
            format!("# staff\n{first} a\n{second} b\nrestrict {first}"),
        )
        .unwrap();
        let change = |lines: &[Line]| {
            add_keys(&alice, &list, lines).unwrap();
            std::fs::read_to_string(&list).unwrap()
        };
        let guest = read(&format!("restrict {first} g\n"), Some("29990102Z")).unwrap();
        assert_eq!(
            change(&guest),
            format!("# staff\nexpiry-time=\"29990102000000Z\",restrict {first} g\n{second} b\n")
        );
        let plain = read(first, None).unwrap();
        assert_eq!(change(&plain), format!("# staff\n{first}\n{second} b\n"));
        assert_eq!(change(&plain), format!("# staff\n{first}\n{second} b\n"));
        let twice = read(&format!("expiry-time=\"29990102Z\" {first}"), Some("1d"));
        assert!(twice.is_err());
        assert!(read("# none\n", None).is_err());
        // A list that makes roles, sent as a user's key file.
        for options in ["cert-authority", "cert-authority,principals=\"ops\""] {
            let told = read(&format!("{first} a\n{options} {second}\n"), None);
            let told = told.map(drop).unwrap_err().to_string();
            assert!(told.contains("cert-authority"), "{told}");
        }
    }

    #[test]
    fn a_private_key_in_the_place_of_a_public_one_is_named() {
        let alice: UserName = "alice".parse().unwrap();
        let text = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n";
        let told = parse_file(&alice, text).unwrap_err();
        let told = told.to_string();
        assert!(told.starts_with("this is a private key, which"), "{told}");
        assert!(parse_file(&alice, KEYS[0]).is_ok());
    }

    #[test]
    fn a_key_is_taken_out_of_a_list_with_all_its_lines() {
        let alice: UserName = "alice".parse().unwrap();
        let [first, second] = KEYS;
        let list = format!("# staff\n{first} a\n{second}\nrestrict {first}\nnonsense\n");
        let key = parse_file(&alice, first).unwrap().remove(0).fingerprint;
        let (rest, taken) = without(&alice, &list, &[key].into());
        assert_eq!(rest, format!("# staff\n{second}\nnonsense\n"));
        assert_eq!(taken, [key].into());
        let (same, none) = without(&alice, &rest, &[key].into());
        assert!(same == rest && none.is_empty());
    }
}
