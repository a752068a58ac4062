//! Accounts and groups, by the system's name service (NSS).

use std::ffi::CString;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, User, getgrouplist};
use usher_label::{LoginLabels, LoginLine};

use super::LoginError;

/// An account, as lines of mac.login are about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// Its name, as the name service writes it.
    pub name: String,
    /// All its groups, the primary one included.
    pub groups: Vec<u32>,
}

impl Person {
    /// Looks an account up.
    ///
    /// # Errors
    ///
    /// No account has this name, or the name service does not answer.
    pub fn of(user: &str) -> Result<Self, LoginError> {
        let failed = |subject: &str, error| LoginError::NameService {
            subject: subject.to_owned(),
            user: user.to_owned(),
            error,
        };
        let account = found(User::from_name(user)).map_err(|error| failed("the account", error))?;
        let account = account.ok_or_else(|| LoginError::NoAccount(user.to_owned()))?;
        let name = CString::new(account.name.as_str()).map_err(|_| failed("it", Errno::EINVAL))?;
        let groups = getgrouplist(&name, account.gid);
        let groups = groups.map_err(|error| failed("the account's groups", error))?;
        Ok(Self {
            name: account.name,
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        })
    }
}

/// The line that decides for an account. A group that the name service does not know has no member.
///
/// # Errors
///
/// The name service does not answer.
pub fn deciding_line<'l>(
    labels: &'l LoginLabels,
    person: &Person,
) -> Result<Option<&'l LoginLine>, LoginError> {
    labels.decide(&person.name, |group| {
        let known = found(Group::from_name(group)).map_err(|error| LoginError::NameService {
            subject: format!("the group {group}"),
            user: person.name.clone(),
            error,
        })?;
        Ok(known.is_some_and(|known| person.groups.contains(&known.gid.as_raw())))
    })
}

/// The number of the account of this name; `None` if there is none.
///
/// # Errors
///
/// As getpwnam_r(3).
pub fn user_id(name: &str) -> Result<Option<u32>, Errno> {
    Ok(found(User::from_name(name))?.map(|user| user.uid.as_raw()))
}

/// Whether the name service knows a group of this name.
///
/// # Errors
///
/// As getgrnam_r(3).
pub fn is_group(name: &str) -> Result<bool, Errno> {
    Ok(found(Group::from_name(name))?.is_some())
}

/// Some name services answer a name that is not there with an error (getpwnam_r(3)).
fn found<T>(answer: Result<Option<T>, Errno>) -> Result<Option<T>, Errno> {
    match answer {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use usher_language::Source;

    use super::*;

    fn labels(text: &str) -> LoginLabels {
        let (name, text) = ("mac.login".to_owned(), text.to_owned());
        LoginLabels::parse(Source { name, text }).unwrap()
    }

    #[test]
    fn a_group_has_its_primary_members_and_no_unknown_group_any() {
        let daemon = Person::of("daemon").unwrap();
        assert_eq!(daemon.name, "daemon");
        let text = "group no-such-group test/a\ngroup daemon test/b\ndefault test/c\n";
        let line = |person| deciding_line(&labels(text), person).unwrap().unwrap().line;
        assert_eq!(line(&daemon), 2);
        assert_eq!(line(&Person::of("root").unwrap()), 3);
        assert_eq!(user_id("root"), Ok(Some(0)));
        assert_eq!(user_id("no-such-user"), Ok(None));
        assert!(is_group("daemon").unwrap() && !is_group("no-such-group").unwrap());
    }

    #[test]
    fn who_has_no_account_has_no_label() {
        let refused = Person::of("no-such-user").unwrap_err().to_string();
        assert!(refused.contains("no account \"no-such-user\""), "{refused}");
    }
}
