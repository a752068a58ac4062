//! Admission by principals: an authority names them in certificates, and policy says which principals it is
//! trusted to name for which users.

use usher_base::{HostName, ServiceName, UserName};
use usher_policy::{Name, Service, TrustedPrincipal};
use usher_proto::Certified;
use usher_proto::refusal::Refusal;

use crate::checked::Checked;
use crate::keys::UserKey;

impl Checked {
    /// Whether a service admits the user from a host, by name or by the principals of the certificate:
    /// as [`usher_policy::Policy::service_permits`].
    ///
    /// # Errors
    /// As [`usher_policy::Policy::service_permits`].
    pub fn service_permits(
        &self,
        service: &ServiceName,
        user: &UserName,
        certificate: Option<&Certified>,
        host: &HostName,
        now: u64,
    ) -> Result<(&Service, u64), Refusal> {
        let purpose = self.policy.services.get(service);
        let purpose = purpose.and_then(|service| service.keys.as_ref());
        let principals = match certificate {
            Some(certificate) => self.trusted_principals(user, certificate, purpose, now),
            None => Vec::new(),
        };
        self.policy
            .service_permits(service, user, &principals, host, now)
    }

    /// The principals of a certificate that its authority is trusted to name for the user at `now`. An
    /// authority for every user may name all; one in the user's lists may name those of its lines, or the
    /// user, until the last of these lines expires. Empty if the certificate does not admit the user.
    #[must_use]
    pub fn trusted_principals<'c>(
        &self,
        user: &UserName,
        certificate: &'c Certified,
        purpose: Option<&Name>,
        now: u64,
    ) -> Vec<TrustedPrincipal<'c>> {
        let everybodys =
            self.is_everybodys(certificate, purpose) && certificate.principals.has(user.as_str());
        let lines: Vec<&UserKey> = self
            .lines_of(user, certificate, purpose)
            .filter(|line| !line.has_expired(now))
            .collect();
        let trusted_until = |name: &str| {
            let lines = lines.iter().filter(|line| line.trusts(user, name));
            let of_lines = lines.map(|line| line.latest(u64::MAX)).max();
            everybodys.then_some(u64::MAX).or(of_lines)
        };
        let names = certificate.principals.names();
        names
            .filter_map(|name| {
                let until = trusted_until(name)?;
                Some(TrustedPrincipal { name, until })
            })
            .collect()
    }

    /// Whether some authority is trusted to name this principal for some user, for this purpose.
    #[must_use]
    pub fn can_certify(&self, principal: &str, purpose: Option<&Name>, now: u64) -> bool {
        let mut lines = self.keys.iter().flat_map(|(user, keys)| {
            let authorities = self.good_authorities(keys, now);
            authorities.map(move |line| (user, line))
        });
        purpose.is_none() && self.has_authority()
            || lines.any(|(user, line)| {
                line.purpose.as_ref() == purpose && line.trusts(user, principal)
            })
    }

    /// The lines among these that are authorities, neither revoked nor expired.
    pub fn good_authorities<'k>(
        &self,
        keys: &'k [UserKey],
        now: u64,
    ) -> impl Iterator<Item = &'k UserKey> {
        let good = move |line: &&UserKey| line.options.authority && self.is_good(line, now);
        keys.iter().filter(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checked::tests::{AUTHORITY, admitted, certificate};
    use crate::collect::tests::{collect, tree};

    const HOST: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu";

    #[test]
    fn an_authority_is_trusted_only_for_its_lines_principals() {
        let folder = tree();
        let alice = "alice".parse().unwrap();
        let trusted = |principals: &str| {
            let checked = collect(&folder).unwrap().check().unwrap();
            let certificate = certificate(principals);
            let trusted = checked.trusted_principals(&alice, &certificate, None, 10);
            let names: Vec<&str> = trusted.iter().map(|principal| principal.name).collect();
            names.join(",")
        };
        let list = |text: &str| {
            let path = folder.path().join("users/alice/authorized_keys");
            std::fs::write(path, text.replace("KEY", AUTHORITY)).unwrap();
        };
        assert_eq!(trusted("alice,admin"), "");
        list("cert-authority,principals=\"ops,dev\" KEY\n");
        assert_eq!(trusted("admin,ops,alice"), "ops");
        list("cert-authority,principals=\"ops\" KEY\ncert-authority KEY\n");
        assert_eq!(trusted("admin,ops,alice"), "ops,alice");
        // An authority for every user may name any principals, if its certificate names the user as well.
        std::fs::write(folder.path().join("user_ca_keys"), AUTHORITY).unwrap();
        assert_eq!(trusted("admin,ops,alice"), "admin,ops,alice");
        assert_eq!(trusted("admin,ops"), "ops");
        // An expired line names no user any more.
        list("cert-authority,principals=\"ops\",expiry-time=\"197001010000Z\" KEY\n");
        assert_eq!(trusted("admin,ops"), "");
    }

    #[test]
    fn a_service_admits_principals_while_their_authority_is_trusted() {
        let folder = tree();
        let policy = format!(
            "host laptop {{ address 10.0.0.1; key \"{HOST}\"; }}
             users ops {{ principal ops, dev; }}
             service notes {{ program \"/x\"; listen 1; users ops; hosts any; style user; }}
             service vault {{ program \"/x\"; listen 2; users ops; hosts any; style user; keys banking; }}"
        );
        std::fs::write(folder.path().join("policy.d/site.policy"), policy).unwrap();
        let list = |name: &str, text: &str| {
            let path = folder.path().join("users/alice").join(name);
            std::fs::write(path, text.replace("KEY", AUTHORITY)).unwrap();
        };
        let asked = |service: &str, principals: Option<&str>| {
            let checked = collect(&folder).unwrap().check().unwrap();
            let certificate = principals.map(certificate);
            let (service, alice) = (service.parse().unwrap(), "alice".parse().unwrap());
            let (laptop, certificate) = ("laptop".parse().unwrap(), certificate.as_ref());
            let asked = checked.service_permits(&service, &alice, certificate, &laptop, 10);
            asked.map(|(_, until)| until)
        };
        let refused = Err(Refusal::UserNotPermitted);
        // No trusted authority names these principals. One for every user counts if it names the user, too.
        assert_eq!(asked("notes", Some("alice,ops")), refused);
        std::fs::write(folder.path().join("user_ca_keys"), AUTHORITY).unwrap();
        for principals in ["alice,ops", "dev,net,alice"] {
            assert_eq!(asked("notes", Some(principals)), Ok(u64::MAX));
            assert_eq!(asked("vault", Some(principals)), refused);
        }
        for others in ["alice", "ops", "alice,net", "bob,ops", "alice,ops2"] {
            assert_eq!(asked("notes", Some(others)), refused);
        }
        assert_eq!(asked("notes", None), refused);
        std::fs::remove_file(folder.path().join("user_ca_keys")).unwrap();
        // A cert-authority line of the user's list for the same purpose, with the principals that it names.
        list("authorized_keys", "cert-authority KEY\n");
        assert_eq!(asked("notes", Some("alice,ops")), refused);
        list("authorized_keys", "cert-authority,principals=\"net\" KEY\n");
        assert_eq!(asked("notes", Some("net,ops")), refused);
        list(
            "authorized_keys",
            "cert-authority,principals=\"net,dev\" KEY\n",
        );
        assert_eq!(asked("notes", Some("net,dev")), Ok(u64::MAX));
        assert_eq!(asked("vault", Some("net,dev")), refused);
        list(
            "authorized_keys.banking",
            "cert-authority,principals=\"ops\" KEY\n",
        );
        assert_eq!(asked("vault", Some("ops")), Ok(u64::MAX));
        // The longer line does not lend its time to the other one's principals.
        list(
            "authorized_keys",
            "cert-authority,principals=\"ops\",expiry-time=\"197001010001Z\" KEY\n\
             cert-authority,principals=\"net\",expiry-time=\"197001010005Z\" KEY\n",
        );
        assert_eq!(asked("notes", Some("ops,net")), Ok(60));
        assert_eq!(admitted(&folder, "ops,net", None), Ok(300));
    }

    #[test]
    fn trusted_authorities_decide_which_names_can_be_certified() {
        let folder = tree();
        let banking = "banking".parse().unwrap();
        let can = |principal: &str| {
            let checked = collect(&folder).unwrap().check().unwrap();
            let purposes = [None, Some(&banking)];
            purposes.map(|purpose| checked.can_certify(principal, purpose, 10))
        };
        let write = |name: &str, text: &str| {
            let text = text.replace("KEY", AUTHORITY);
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        assert_eq!(can("ops"), [false, false]);
        let banking_list = "users/alice/authorized_keys.banking";
        write(banking_list, "cert-authority,principals=\"ops\" KEY\n");
        assert_eq!((can("ops"), can("dev")), ([false, true], [false, false]));
        write("user_ca_keys", "KEY\n");
        assert_eq!((can("ops"), can("dev")), ([true, true], [true, false]));
        write("revoked_keys", "KEY\n");
        assert_eq!(can("ops"), [false, false]);
        std::fs::remove_file(folder.path().join("revoked_keys")).unwrap();
        let expired = "cert-authority,principals=\"ops\",expiry-time=\"197001010000Z\" KEY\n";
        write(banking_list, expired);
        assert_eq!(can("ops"), [true, false]);
        write(banking_list, "cert-authority KEY\n");
        assert_eq!((can("alice"), can("bob")), ([true, true], [true, false]));
    }
}
