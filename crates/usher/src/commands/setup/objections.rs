//! The hosts that `usher setup` refuses, because they are already set up otherwise.

use usher_policy::Policy;

use super::facts::{Facts, PolicyFile};
use super::site::{Side, Site};
use crate::failure::Failure;

impl Site {
    /// Refuses hosts that are already set up otherwise.
    ///
    /// # Errors
    /// The first difference.
    pub fn require(&self, here: &Facts, there: &Facts) -> Result<(), Failure> {
        if self.client == self.server {
            return Err(Failure::Refused(format!(
                "both hosts have the name {}: give another by --name or --server-name",
                self.client
            )));
        }
        if self.address == self.server_address {
            return Err(Failure::Refused(format!(
                "both hosts have the address {}: the server has to be another host",
                self.address
            )));
        }
        for (side, facts) in [(Side::Client, here), (Side::Server, there)] {
            let host = self.name(side);
            match facts.account {
                Some(0) => {
                    return Err(Failure::Refused(format!(
                        "{} has user id 0 on {host}, and root cannot be a user of Usher",
                        self.user
                    )));
                }
                Some(_) => {}
                None => {
                    return Err(Failure::Refused(format!(
                        "{host} has no account {user}: make it there, for example by `adduser {user}`",
                        user = self.user
                    )));
                }
            }
            let wanted = self.policy(side);
            for file in &facts.policy {
                let is_own = file.path == self.policy_path() && file.text == wanted;
                if !is_own && !is_empty(&file.text) && !has_one_host(file) {
                    return Err(Failure::Refused(format!(
                        "{host} has a policy already ({}), and `usher setup` changes none: go on by the steps of \
                         docs/start.md",
                        file.path
                    )));
                }
            }
            let is_kept = |file: &&PolicyFile| is_empty(&file.text) || facts.policy.contains(file);
            if let Some(file) = facts.in_force.iter().find(|file| !is_kept(file)) {
                return Err(Failure::Refused(format!(
                    "the policy in force on {host} has {}, and its policy folder has not, or another: \
                     `usher policy apply` would replace it. Go on by the steps of docs/start.md",
                    file.path
                )));
            }
        }
        self.then(here, there).map(drop)
    }
}

/// Whether a policy file permits and defines nothing, as the example of `usher init`.
fn is_empty(text: &str) -> bool {
    text.lines()
        .all(|line| line.trim().is_empty() || line.trim().starts_with('#'))
}

/// Whether a file has one host's block and nothing else, as `usher host add` writes it.
fn has_one_host(file: &PolicyFile) -> bool {
    file.policy().is_some_and(|policy| {
        let hosts = policy.hosts.clone();
        let only_hosts = Policy {
            hosts,
            ..Policy::default()
        };
        policy.hosts.len() == 1 && policy == only_hosts
    })
}

#[cfg(test)]
mod tests {
    use super::super::site::Offered;
    use super::super::site::tests::{CLIENT_KEY, USER_KEY, block, fresh, set_up, site};
    use super::*;

    fn refusal(here: &Facts, there: &Facts) -> String {
        let refused = site(Offered::Whoami).require(here, there);
        refused.expect_err("a refusal").to_string()
    }

    #[test]
    fn what_is_otherwise_is_refused() {
        let (here, there) = (set_up(Side::Client), set_up(Side::Server));
        let other = |path: &str, text: &str| Facts {
            policy: vec![PolicyFile {
                path: format!("/etc/usher/policy.d/{path}"),
                text: text.into(),
            }],
            ..set_up(Side::Server)
        };
        let mine = other("20-mine.policy", "users u { member bob; }");
        assert!(
            refusal(&here, &mine)
                .contains("mailhost has a policy already (/etc/usher/policy.d/20-mine.policy)")
        );
        let hidden = other("host-x.policy", "users u { member bob; }");
        assert!(refusal(&here, &hidden).contains("host-x.policy"));
        let mut replaced = set_up(Side::Server);
        replaced.in_force = mine.policy.clone();
        let told = refusal(&here, &replaced);
        assert!(
            told.contains("in force on mailhost has /etc/usher/policy.d/20-mine.policy"),
            "{told}"
        );
        let edited = other("setup.policy", "users setup { member alice, bob; }");
        assert!(refusal(&here, &edited).contains("setup.policy"));
        for (address, key) in [("192.0.2.9", CLIENT_KEY), ("192.0.2.1", USER_KEY)] {
            let file = block("laptop", address, key);
            let moved = other("host-laptop.policy", &file.text);
            let told = refusal(&here, &moved);
            assert!(told.contains("usher host remove laptop"), "{told}");
        }
        let without = Facts {
            account: None,
            ..there.clone()
        };
        assert!(refusal(&here, &without).contains("mailhost has no account alice"));
        let root = Facts {
            account: Some(0),
            ..here.clone()
        };
        assert!(refusal(&root, &there).contains("user id 0 on laptop"));
        let same = Site {
            server: "laptop".parse().expect("a name"),
            ..site(Offered::Whoami)
        };
        let told = same.require(&fresh(), &fresh()).expect_err("a refusal");
        assert!(told.to_string().contains("--server-name"), "{told}");
    }
}
