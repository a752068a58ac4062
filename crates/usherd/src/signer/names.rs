//! Names of local accounts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use usher_base::UserName;
use usher_proto::refusal::Refusal;

/// The time for which a name is cached. A look-up goes through the name service's modules and another
/// thread; a user who connects often needs one per period. A renamed or removed account is noticed
/// after it.
const FRESH: Duration = Duration::from_secs(1);
/// Limit of cached names; beyond this all are forgotten and looked up again.
const KEPT: usize = 4096;

/// The account names of the users who asked within the last second.
#[derive(Debug, Default)]
pub struct Names(Mutex<HashMap<u32, (UserName, Instant)>>);

impl Names {
    /// The name of the account `uid`.
    ///
    /// # Errors
    /// [`Refusal::UnknownUser`] when there is no such account or Usher does not accept its name;
    /// [`Refusal::SignerUnavailable`] when the name service fails. Neither is cached.
    pub async fn of(&self, uid: u32) -> Result<UserName, Refusal> {
        if let Some(name) = self.fresh(uid) {
            return Ok(name);
        }
        // The age of an answer counts from its question.
        let asked = Instant::now();
        let name = look_up(uid).await?;
        let mut names = self.0.lock();
        if names.len() >= KEPT {
            names.clear();
        }
        names.insert(uid, (name.clone(), asked));
        Ok(name)
    }

    /// Forgets all names.
    pub fn forget(&self) {
        self.0.lock().clear();
    }

    fn fresh(&self, uid: u32) -> Option<UserName> {
        let names = self.0.lock();
        names
            .get(&uid)
            .filter(|(_, asked)| asked.elapsed() < FRESH)
            .map(|(name, _)| name.clone())
    }
}

/// Asks the name service (NSS), not on the reactor's thread, because it may ask other hosts.
async fn look_up(uid: u32) -> Result<UserName, Refusal> {
    let found = tokio::task::spawn_blocking(move || {
        nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid))
    })
    .await;
    match found {
        Ok(Ok(Some(user))) => user.name.parse().map_err(|_| Refusal::UnknownUser),
        Ok(Ok(None)) => Err(Refusal::UnknownUser),
        Ok(Err(error)) => {
            tracing::error!(uid, %error, "cannot look up an account");
            Err(Refusal::SignerUnavailable)
        }
        Err(error) => {
            tracing::error!(uid, %error, "cannot look up an account");
            Err(Refusal::SignerUnavailable)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No account has it: (uid_t) -2 is free where the account nobody is 65534, as on every Debian.
    const NOBODY_AT_ALL: u32 = u32::MAX - 1;

    #[tokio::test]
    async fn a_name_is_remembered_until_it_is_forgotten_or_old() {
        let names = Names::default();
        assert_eq!(names.of(0).await.unwrap().as_ref(), "root");
        assert!(names.fresh(0).is_some());
        names.forget();
        assert!(names.fresh(0).is_none());

        let old = Instant::now().checked_sub(FRESH).unwrap();
        let other: UserName = "other".parse().unwrap();
        names.0.lock().insert(0, (other.clone(), old));
        assert_eq!(names.of(0).await.unwrap().as_ref(), "root");
        names.0.lock().insert(0, (other, Instant::now()));
        assert_eq!(names.of(0).await.unwrap().as_ref(), "other");
    }

    #[tokio::test]
    async fn that_there_is_no_account_is_not_remembered() {
        let names = Names::default();
        assert_eq!(names.of(NOBODY_AT_ALL).await, Err(Refusal::UnknownUser));
        assert!(names.0.lock().is_empty());
    }
}
