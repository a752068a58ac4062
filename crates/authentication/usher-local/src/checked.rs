//! The configuration after all checks, and its rules about users' keys and certificates.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use usher_base::{HostName, ServiceName, UserName};
use usher_policy::{Host, Name, Policy, Service};
use usher_proto::host_key::HostPublicKey;
use usher_proto::refusal::Refusal;
use usher_proto::ssh_key::PublicKey;
use usher_proto::{Certified, RevokedKeys};

use crate::error::ConfigurationError;
use crate::keys::{Fingerprint, UserKey};

/// A configuration that has passed all checks.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The policy.
    pub policy: Policy,
    /// Its services, by the numbers that the kernel knows them by.
    pub services_by_number: HashMap<u32, ServiceName>,
    /// The identities of hosts that have replaced their keys ([`Checked::identity`]).
    pub identities: BTreeMap<HostName, HostPublicKey>,
    /// Each user's public keys, and authorities for that user.
    pub keys: BTreeMap<UserName, Vec<UserKey>>,
    /// The users who are disabled on this host, in a small set of their own: every authentication asks
    /// for it.
    pub disabled: BTreeSet<UserName>,
    /// Authorities for every user, at services without `keys`; revoked ones included.
    pub authorities: BTreeMap<Fingerprint, PublicKey>,
    /// Revoked keys and certificates.
    pub revoked: RevokedKeys,
}

impl Checked {
    /// The identity of a host, by which its sessions know it: the key that it had at first. The identity stays
    /// the same while the host replaces its key by way of a policy that has both. A host whose key was replaced
    /// in one step is another host, with another identity.
    #[must_use]
    pub fn identity(&self, host: &Host) -> HostPublicKey {
        let kept = self.identities.get(&host.name).copied();
        kept.unwrap_or(host.keys[0])
    }

    /// The identity of the host with this name in the policy.
    #[must_use]
    pub fn identity_of(&self, name: &HostName) -> Option<HostPublicKey> {
        self.policy.hosts.get(name).map(|host| self.identity(host))
    }

    /// The service that has this number.
    #[must_use]
    pub fn service(&self, number: u32) -> Option<&Service> {
        let name = self.services_by_number.get(&number)?;
        self.policy.services.get(name)
    }

    /// The name of the service that has this number, or one made from the number if the policy does not
    /// have it.
    #[must_use]
    pub fn service_name(&self, number: u32) -> ServiceName {
        self.service(number).map_or_else(
            || {
                format!("service-{number}")
                    .parse()
                    .unwrap_or_else(|_| unreachable!("a valid name"))
            },
            |service| service.name.clone(),
        )
    }

    /// The time until which the user may use the key with this fingerprint for this purpose, by a list or
    /// by a certificate; `end` at the latest.
    ///
    /// # Errors
    /// As [`Checked::user_key`] or [`Checked::certified`].
    pub fn admitted_until(
        &self,
        user: &UserName,
        fingerprint: &Fingerprint,
        certificate: Option<&Certified>,
        purpose: Option<&Name>,
        (now, end): (u64, u64),
    ) -> Result<u64, Refusal> {
        match certificate {
            None => self
                .user_key(user, fingerprint, purpose, now)
                .map(|key| key.latest(end)),
            Some(certificate) => self.certified(user, fingerprint, certificate, purpose, now, end),
        }
    }

    /// The time until which the user may use a certified key for this purpose. Its certificate was valid when
    /// the session was opened.
    ///
    /// An authority for every user counts if there is no particular purpose and the certificate names the
    /// user. An authority in the user's list for the purpose counts if the certificate names one of the
    /// line's principals, or the user if the line has none. A certificate without principals counts for
    /// no user.
    ///
    /// # Errors
    /// In this order: [`Refusal::ExpiredCertificate`], [`Refusal::RevokedKey`],
    /// [`Refusal::RevokedCertificate`], [`Refusal::UnknownAuthority`], [`Refusal::WrongPrincipal`],
    /// [`Refusal::ExpiredKey`] when the authority's lines have expired.
    fn certified(
        &self,
        user: &UserName,
        fingerprint: &Fingerprint,
        certificate: &Certified,
        purpose: Option<&Name>,
        now: u64,
        end: u64,
    ) -> Result<u64, Refusal> {
        if certificate.valid_before <= now {
            return Err(Refusal::ExpiredCertificate);
        }
        if self.revoked.has_certified_key(fingerprint, certificate) {
            return Err(Refusal::RevokedKey);
        }
        if self.revoked.has_certificate(certificate) {
            return Err(Refusal::RevokedCertificate);
        }
        let end = end.min(certificate.valid_before);
        let everybodys = self.is_everybodys(certificate, purpose);
        if everybodys && certificate.principals.has(user.as_str()) {
            return Ok(end);
        }
        let lines: Vec<&UserKey> = self.lines_of(user, certificate, purpose).collect();
        if lines.is_empty() && !everybodys {
            return Err(Refusal::UnknownAuthority);
        }
        lines
            .iter()
            .filter(|line| line.admits(user, &certificate.principals))
            .map(|line| line.latest(end))
            .max()
            .ok_or(Refusal::WrongPrincipal)
            .and_then(|latest| (latest > now).then_some(latest).ok_or(Refusal::ExpiredKey))
    }

    /// Whether a certificate's authority is one for every user and counts for this purpose.
    pub(crate) fn is_everybodys(&self, certificate: &Certified, purpose: Option<&Name>) -> bool {
        purpose.is_none() && self.authorities.contains_key(&certificate.authority)
    }

    /// The lines of a user's list that let a certificate's authority count for this purpose.
    pub(crate) fn lines_of<'c>(
        &'c self,
        user: &UserName,
        certificate: &Certified,
        purpose: Option<&Name>,
    ) -> impl Iterator<Item = &'c UserKey> {
        let keys = self.keys.get(user).into_iter().flatten();
        keys.filter(move |key| {
            key.options.authority
                && key.fingerprint == certificate.authority
                && key.purpose.as_ref() == purpose
        })
    }

    /// Whether every user may have a certificate that counts, at services without `keys`.
    #[must_use]
    pub fn has_authority(&self) -> bool {
        let mut authorities = self.authorities.values();
        authorities.any(|key| !self.revoked.has_key(key))
    }

    /// Whether some key or certificate may be the user's for this purpose at `now`, in seconds since 1970.
    /// Revoked or expired keys and authorities do not count.
    #[must_use]
    pub fn has_way_in(&self, user: &UserName, purpose: Option<&Name>, now: u64) -> bool {
        purpose.is_none() && self.has_authority()
            || self
                .keys_for(user, purpose)
                .any(|key| self.is_good(key, now))
    }

    /// Whether a key is neither revoked nor expired.
    pub(crate) fn is_good(&self, key: &UserKey, now: u64) -> bool {
        !self.revoked.has_key(&key.key) && !key.has_expired(now)
    }

    /// How many keys and authorities in the lists of users are good at `now` and end by `then`, both in seconds
    /// since 1970.
    #[must_use]
    pub fn keys_ending(&self, now: u64, then: u64) -> usize {
        let keys = self.keys.values().flatten();
        // The cheap check goes first: few keys have an end, and the check for revocation takes a hash.
        keys.filter(|key| key.has_expired(then) && self.is_good(key, now))
            .count()
    }

    /// The user's keys and authorities for this purpose, valid or not.
    pub fn keys_for<'c>(
        &'c self,
        user: &UserName,
        purpose: Option<&'c Name>,
    ) -> impl Iterator<Item = &'c UserKey> {
        let keys = self.keys.get(user).into_iter().flatten();
        keys.filter(move |key| key.purpose.as_ref() == purpose)
    }

    /// The user's key with this fingerprint and purpose. Of several lines with one key the one that expires
    /// last counts, as for sshd.
    ///
    /// # Errors
    /// [`Refusal::UnknownUser`] for one without any key, [`Refusal::UnknownKey`],
    /// [`Refusal::RevokedKey`], [`Refusal::ExpiredKey`] when it has expired at `now`, in seconds since 1970.
    pub fn user_key(
        &self,
        user: &UserName,
        fingerprint: &Fingerprint,
        purpose: Option<&Name>,
        now: u64,
    ) -> Result<&UserKey, Refusal> {
        let keys = self.keys.get(user).filter(|keys| !keys.is_empty());
        let key = keys
            .ok_or(Refusal::UnknownUser)?
            .iter()
            .filter(|key| !key.options.authority)
            .filter(|key| key.fingerprint == *fingerprint && key.purpose.as_ref() == purpose)
            .max_by_key(|key| key.options.expires.unwrap_or(u64::MAX))
            .ok_or(Refusal::UnknownKey)?;
        if self.revoked.has_key(&key.key) {
            return Err(Refusal::RevokedKey);
        }
        if key.has_expired(now) {
            return Err(Refusal::ExpiredKey);
        }
        Ok(key)
    }

    /// Whether this version can enforce the whole policy.
    ///
    /// # Errors
    /// [`ConfigurationError::NotEnforced`]: otherwise traffic that policy protects could pass in the clear,
    /// or something that a module would refuse.
    pub fn enforceable(self) -> Result<Self, ConfigurationError> {
        if let Some(need) = self.policy.needs.unmet().first() {
            return Err(ConfigurationError::NotEnforced(Box::new((*need).clone())));
        }
        Ok(self)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::collect::tests::{collect, tree};
    use crate::keys;

    #[test]
    fn lists_of_keys_are_told_apart_by_what_they_are_for() {
        const KEY: &str =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k";
        let folder = tree();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join("users/alice").join(name), text).unwrap();
        };
        write("authorized_keys.banking", KEY);
        write("authorized_keys~", "left by an editor");
        let alice = "alice".parse().unwrap();
        let checked = collect(&folder).unwrap().check().unwrap();
        let fingerprint = checked.keys[&alice][0].fingerprint;
        let asked = |purpose: Option<&str>| {
            let purpose = purpose.map(|purpose| purpose.parse().unwrap());
            let found = checked.user_key(&alice, &fingerprint, purpose.as_ref(), 0);
            found.map(|key| key.purpose.clone())
        };
        assert_eq!(asked(Some("banking")), Ok(Some("banking".parse().unwrap())));
        for other in [None, Some("mail")] {
            assert_eq!(asked(other), Err(Refusal::UnknownKey));
        }
        write("authorized_keys.banking", "nonsense");
        let refused = collect(&folder).unwrap().check().unwrap_err().to_string();
        assert!(
            refused.starts_with("alice: authorized_keys.banking line 1: "),
            "{refused}"
        );
        write("authorized_keys.banking", KEY);
        write("authorized_keys.any", KEY);
        let refused = collect(&folder).unwrap().check();
        assert!(matches!(refused, Err(ConfigurationError::KeysFor { .. })));
    }

    #[test]
    fn only_a_key_neither_expired_nor_revoked_lets_its_user_in() {
        let folder = tree();
        let list = folder.path().join("users/alice/authorized_keys");
        let alice: UserName = "alice".parse().unwrap();
        let way_in = |line: &str, revoked: &str| {
            std::fs::write(&list, line).unwrap();
            std::fs::write(folder.path().join("revoked_keys"), revoked).unwrap();
            let checked = collect(&folder).unwrap().check().unwrap();
            let found = checked.keys_for(&alice, None).count();
            (found, checked.has_way_in(&alice, None, 1_000_000))
        };
        assert_eq!(way_in("", "# none\n"), (0, false));
        assert_eq!(way_in(AUTHORITY, "# none\n"), (1, true));
        assert_eq!(way_in(AUTHORITY, AUTHORITY), (1, false));
        let expired = format!("expiry-time=\"19700102Z\" {AUTHORITY}");
        assert_eq!(way_in(&expired, "# none\n"), (1, false));
    }

    #[test]
    fn keys_that_end_soon_are_counted() {
        let folder = tree();
        let list = folder.path().join("users/alice/authorized_keys");
        let ending = |line: &str, now: u64, then: u64| {
            std::fs::write(&list, line).unwrap();
            let checked = collect(&folder).unwrap().check().unwrap();
            checked.keys_ending(now, then)
        };
        // The authority expires at 86,400.
        let ends = format!("expiry-time=\"19700102Z\" {AUTHORITY}");
        assert_eq!(ending(&ends, 0, 86_399), 0);
        assert_eq!(ending(&ends, 0, 86_400), 1);
        assert_eq!(ending(&ends, 86_399, 90_000), 1);
        assert_eq!(ending(&ends, 86_400, 90_000), 0);
        assert_eq!(ending(AUTHORITY, 0, u64::MAX), 0);
        std::fs::write(folder.path().join("revoked_keys"), AUTHORITY).unwrap();
        assert_eq!(ending(&ends, 0, 86_400), 0);
    }

    pub(crate) const AUTHORITY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k";

    /// A certificate by [`AUTHORITY`], valid before 1,000.
    pub(crate) fn certificate(principals: &str) -> Certified {
        let authority = usher_proto::ssh_key::PublicKey::from_openssh(AUTHORITY).unwrap();
        Certified {
            authority: keys::fingerprint(&authority),
            authority_sha1: [0; 20],
            key_sha1: [0; 20],
            serial: 0,
            key_id: [0; 32],
            valid_before: 1000,
            principals: principals.parse().unwrap(),
        }
    }

    /// The time until which alice is admitted, at time 10, by a certificate with these principals.
    pub(crate) fn admitted(
        folder: &tempfile::TempDir,
        principals: &str,
        purpose: Option<&str>,
    ) -> Result<u64, Refusal> {
        let checked = collect(folder).unwrap().check().unwrap();
        let purpose = purpose.map(|purpose| purpose.parse().unwrap());
        checked.admitted_until(
            &"alice".parse().unwrap(),
            &[1; 32],
            Some(&certificate(principals)),
            purpose.as_ref(),
            (10, 5000),
        )
    }

    #[test]
    fn an_authority_for_all_users_certifies_each_by_name() {
        let folder = tree();
        let unknown = Err(Refusal::UnknownAuthority);
        assert_eq!(admitted(&folder, "alice", None), unknown);
        std::fs::write(folder.path().join("user_ca_keys"), AUTHORITY).unwrap();
        assert_eq!(admitted(&folder, "ops,alice", None), Ok(1000));
        for others in ["bob", "alic", "alice@example.org", ""] {
            assert_eq!(
                admitted(&folder, others, None),
                Err(Refusal::WrongPrincipal)
            );
        }
        assert_eq!(admitted(&folder, "alice", Some("banking")), unknown);
        std::fs::write(folder.path().join("user_ca_keys"), "nonsense").unwrap();
        let refused = collect(&folder).unwrap().check().unwrap_err().to_string();
        assert!(refused.contains("user_ca_keys line 1: "), "{refused}");
    }

    #[test]
    fn a_users_authority_certifies_by_principals_and_purpose() {
        let folder = tree();
        let list = |name: &str, text: &str| {
            let text = format!("{text} {AUTHORITY}\n");
            std::fs::write(folder.path().join("users/alice").join(name), text).unwrap();
        };
        let wrong = Err(Refusal::WrongPrincipal);
        list("authorized_keys", "cert-authority");
        assert_eq!(admitted(&folder, "alice", None), Ok(1000));
        assert_eq!(admitted(&folder, "ops", None), wrong);
        assert_eq!(admitted(&folder, "", None), wrong);
        list("authorized_keys", "cert-authority,principals=\"ops,dev\"");
        assert_eq!(admitted(&folder, "dev", None), Ok(1000));
        assert_eq!(admitted(&folder, "alice", None), wrong);
        let expiring = "cert-authority,principals=\"ops\",expiry-time=\"197001010001Z\"";
        list("authorized_keys", expiring);
        assert_eq!(admitted(&folder, "ops", None), Ok(60));
        for (time, outcome) in [
            ("19700101000010Z", Err(Refusal::ExpiredKey)),
            ("19700101000011Z", Ok(11)),
        ] {
            let options = format!("cert-authority,principals=\"ops\",expiry-time=\"{time}\"");
            list("authorized_keys", &options);
            assert_eq!(admitted(&folder, "ops", None), outcome, "{time}");
            assert_eq!(admitted(&folder, "dev", None), wrong, "{time}");
        }
        list("authorized_keys", "restrict");
        let unknown = Err(Refusal::UnknownAuthority);
        assert_eq!(admitted(&folder, "alice", None), unknown);
        // An authority for one purpose counts for that purpose only.
        list("authorized_keys.banking", "cert-authority");
        assert_eq!(admitted(&folder, "alice", Some("banking")), Ok(1000));
        assert_eq!(admitted(&folder, "alice", None), unknown);
        assert_eq!(admitted(&folder, "alice", Some("mail")), unknown);
    }

    #[test]
    fn an_authoritys_own_key_opens_nothing() {
        let folder = tree();
        let path = folder.path().join("users/alice/authorized_keys");
        let fingerprint = certificate("").authority;
        let alice = "alice".parse().unwrap();
        let asked = |options: &str| {
            std::fs::write(&path, format!("{options}{AUTHORITY}")).unwrap();
            let checked = collect(&folder).unwrap().check().unwrap();
            checked.admitted_until(&alice, &fingerprint, None, None, (10, 50))
        };
        assert_eq!(asked(""), Ok(50));
        assert_eq!(asked("cert-authority "), Err(Refusal::UnknownKey));
    }

    #[test]
    fn an_expired_or_revoked_certificate_is_told_by_its_own_name() {
        let folder = tree();
        std::fs::write(folder.path().join("user_ca_keys"), AUTHORITY).unwrap();
        let alice = "alice".parse().unwrap();
        let checked = collect(&folder).unwrap().check().unwrap();
        let at = |now| {
            let certificate = certificate("alice");
            checked.admitted_until(&alice, &[1; 32], Some(&certificate), None, (now, 5000))
        };
        assert_eq!(at(999), Ok(1000));
        assert_eq!(at(1000), Err(Refusal::ExpiredCertificate));
        std::fs::write(folder.path().join("revoked_keys"), AUTHORITY).unwrap();
        let revoked = Err(Refusal::RevokedCertificate);
        assert_eq!(admitted(&folder, "alice", None), revoked);
    }

    #[test]
    fn what_cannot_be_enforced_is_read_and_not_applied() {
        let folder = tree();
        let path = folder.path().join("policy.d/site.policy");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let enforceable = || collect(&folder).unwrap().check().unwrap().enforceable();
        write("users mail { member alice; }");
        assert!(enforceable().is_ok());
        write("users mail { member alice; }\napplication ssh { network 0.0.0.0/0 trusted; }");
        assert!(enforceable().is_ok());
        let service = "users mail { member alice; }\nservice s { program \"/x\"; listen 1; users mail; \
                       hosts any; style user;";
        write(&format!("{service} }}"));
        assert!(enforceable().is_ok());
        for transform in ["encryption", "authentication"] {
            write(&format!("{service}\n  protection {transform}; }}"));
            assert!(enforceable().is_ok());
        }
        write("mac bsdextended { rule subject uid alice mode n; }");
        assert!(enforceable().is_ok());
        let mut checked = collect(&folder).unwrap().check().unwrap();
        checked.policy.needs.0[0].needs = "the moon".to_owned();
        let refused = checked.enforceable().unwrap_err().to_string();
        let said = "site.policy:1:1: `mac bsdextended` needs the moon";
        assert!(refused.contains(said), "{refused}");
    }
}
