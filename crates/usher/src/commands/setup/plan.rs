//! The commands of `usher setup`: a pure function of what both hosts are.

use std::net::IpAddr;

use usher_base::{HostName, UserName};
use usher_local::keys::{UserKey, parse_keys};
use usher_local::paths;
use usher_policy::Host;
use usher_proto::HostPublicKey;
use usher_proto::ssh_key::PublicKey;

use super::facts::{Facts, PolicyFile};
use super::machine::quoted;
use super::site::{Offered, Side, Site};
use crate::failure::Failure;

/// The address at which the proxy stands for the server, as docs/start.md has it.
const LOOPBACK: &str = "127.0.2.1";

/// A command on one of the two hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The host on which the command runs.
    pub side: Side,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The command's standard input; empty if none.
    pub input: Option<String>,
}

impl Step {
    fn new(side: Side, words: &[&str]) -> Self {
        Self {
            side,
            words: words.iter().map(|&word| word.to_owned()).collect(),
            input: None,
        }
    }

    fn reading(mut self, input: String) -> Self {
        self.input = Some(input);
        self
    }

    /// The command, as bash takes it.
    pub fn command(&self) -> String {
        let words = quoted(&self.words);
        match &self.input {
            None => words,
            Some(text) => format!("{words} <<'END'\n{}\nEND", text.trim_end()),
        }
    }
}

impl Site {
    /// The first steps, which make the keys that the other steps need.
    pub fn first(&self, here: &Facts, there: &Facts) -> Vec<Step> {
        let mut steps = Vec::new();
        for (side, facts) in [(Side::Client, here), (Side::Server, there)] {
            if facts.key.is_none() {
                let name = self.name(side).as_ref();
                steps.push(Step::new(side, &["usher", "init", "--name", name]));
            }
        }
        if here.signs_by.is_none() {
            let (key, user) = (self.key.display().to_string(), self.user.as_ref());
            let comment = format!("{user}@{}", self.client);
            steps.push(Step::new(
                Side::Client,
                &[
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    &comment,
                    "-f",
                    &key,
                ],
            ));
            steps.push(Step::new(
                Side::Client,
                &["usher", "user", "add", user, "--private-key", &key],
            ));
        }
        steps
    }

    /// The other steps. A placeholder stands for each thing that the first steps have not made yet.
    ///
    /// # Errors
    /// When a file of one host says something else about a host than the plan.
    pub fn then(&self, here: &Facts, there: &Facts) -> Result<Vec<Step>, Failure> {
        let mut steps = Vec::new();
        for (side, facts) in [(Side::Client, here), (Side::Server, there)] {
            for (of, key) in [(Side::Client, &here.key), (Side::Server, &there.key)] {
                steps.extend(self.host_step(side, facts, of, key.as_deref())?);
            }
        }
        let public = here.signs_by.as_deref();
        if !public.is_some_and(|line| is_listed(&self.user, &there.listed, line)) {
            let user = self.user.as_ref();
            let add = ["usher", "user", "add", user, "--public-key", "/dev/stdin"];
            let line = public.map_or_else(|| format!("KEY-OF-{user}"), str::to_owned);
            steps.push(Step::new(Side::Server, &add).reading(line));
        }
        for (side, facts) in [(Side::Server, there), (Side::Client, here)] {
            let path = self.policy_path();
            if !facts
                .policy
                .iter()
                .any(|file| file.path == path && file.text == self.policy(side))
            {
                steps.push(Step::new(side, &["tee", &path]).reading(self.policy(side)));
            }
        }
        for side in [Side::Server, Side::Client] {
            steps.push(Step::new(side, &["usher", "policy", "apply"]));
        }
        let server = ["usher-keeper", "usher-verifier", "usher-recorder"];
        let proxy = (self.offered == Offered::Imap).then_some("usher-proxy");
        let client = ["usher-signer", "usher-courier"]
            .into_iter()
            .chain(proxy)
            .collect::<Vec<_>>();
        for (side, units) in [(Side::Server, &server[..]), (Side::Client, &client[..])] {
            steps.push(Step::new(
                side,
                &[&["systemctl", "enable", "--now"][..], units].concat(),
            ));
        }
        let user = self.user.as_ref();
        let service = format!("{}:{}", self.server, self.service());
        let connect = ["runuser", "-u", user, "--", "usher", "connect", &service];
        steps.push(Step::new(Side::Client, &connect));
        Ok(steps)
    }

    /// Makes one host known to the other, unless the other knows it already.
    fn host_step(
        &self,
        side: Side,
        facts: &Facts,
        of: Side,
        key: Option<&str>,
    ) -> Result<Option<Step>, Failure> {
        let name = self.name(of);
        let address = match of {
            Side::Client => self.address,
            Side::Server => self.server_address,
        };
        let path = format!("{}/host-{name}.policy", paths::POLICY_DIRECTORY);
        if let Some(file) = facts.policy.iter().find(|file| file.path == path) {
            return if says(file, name, address, key) {
                Ok(None)
            } else {
                Err(Failure::Refused(format!(
                    "{path} of {} has another key or address of {name} than it has now ({address}, {}): if this \
                     is right, `usher host remove {name}` there removes the file",
                    self.name(side),
                    key.unwrap_or("no key yet")
                )))
            };
        }
        let address = address.to_string();
        let key = key.map_or_else(|| format!("KEY-OF-{name}"), str::to_owned);
        let mut words = vec![
            "usher",
            "host",
            "add",
            name.as_ref(),
            "--address",
            &address,
            "--key",
            &key,
        ];
        if self.offered == Offered::Imap && side == Side::Client && of == Side::Server {
            words.extend(["--loopback", LOOPBACK]);
        }
        Ok(Some(Step::new(side, &words)))
    }
}

/// Whether a file has a host's block with this address and key.
fn says(file: &PolicyFile, name: &HostName, address: IpAddr, key: Option<&str>) -> bool {
    let policy = file.policy();
    let host = policy.as_ref().and_then(|policy| policy.hosts.get(name));
    let key = key.and_then(|line| HostPublicKey::from_openssh(line).ok());
    let has_key = |host: &Host| key.is_some_and(|key| host.keys.contains(&key));
    host.is_some_and(|host| host.addresses.contains(&address) && has_key(host))
}

/// Whether a user's list admits the user by this key.
fn is_listed(user: &UserName, list: &str, line: &str) -> bool {
    let key = PublicKey::from_openssh(line);
    let listed = parse_keys(user, None, list);
    let (Ok(key), Ok(listed)) = (key, listed) else {
        return false;
    };
    let is_it = |one: &UserKey| !one.options.authority && one.key.key_data() == key.key_data();
    listed.iter().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::super::site::tests::{CLIENT_KEY, USER_KEY, fresh, set_up, site};
    use super::*;

    fn commands(steps: &[Step]) -> Vec<String> {
        let begin = |step: &Step| format!("{:?} {}", step.side, quoted(&step.words));
        steps.iter().map(begin).collect()
    }

    #[test]
    fn fresh_hosts_get_every_step() {
        let site = site(Offered::Imap);
        let (here, there) = (fresh(), fresh());
        site.require(&here, &there).expect("fresh hosts");
        assert_eq!(
            commands(&site.first(&here, &there)),
            [
                "Client usher init --name laptop",
                "Server usher init --name mailhost",
                "Client ssh-keygen -q -t ed25519 -N '' -C alice@laptop -f /run/x/key",
                "Client usher user add alice --private-key /run/x/key",
            ]
        );
        assert_eq!(
            commands(&site.then(&here, &there).expect("steps")),
            [
                "Client usher host add laptop --address 192.0.2.1 --key KEY-OF-laptop",
                "Client usher host add mailhost --address 192.0.2.2 --key KEY-OF-mailhost --loopback 127.0.2.1",
                "Server usher host add laptop --address 192.0.2.1 --key KEY-OF-laptop",
                "Server usher host add mailhost --address 192.0.2.2 --key KEY-OF-mailhost",
                "Server usher user add alice --public-key /dev/stdin",
                "Server tee /etc/usher/policy.d/setup.policy",
                "Client tee /etc/usher/policy.d/setup.policy",
                "Server usher policy apply",
                "Client usher policy apply",
                "Server systemctl enable --now usher-keeper usher-verifier usher-recorder",
                "Client systemctl enable --now usher-signer usher-courier usher-proxy",
                "Client runuser -u alice -- usher connect mailhost:imap",
            ]
        );
    }

    #[test]
    fn what_is_so_already_is_not_done_again() {
        let site = site(Offered::Whoami);
        let (here, there) = (set_up(Side::Client), set_up(Side::Server));
        site.require(&here, &there).expect("hosts that are set up");
        assert_eq!(site.first(&here, &there), []);
        let then = commands(&site.then(&here, &there).expect("steps"));
        assert_eq!(then.len(), 5, "{then:?}");
        assert_eq!(then[0], "Server usher policy apply");
    }

    #[test]
    fn only_a_key_that_admits_the_user_counts_as_listed() {
        let user = "alice".parse().expect("a name");
        for (list, counts) in [
            (format!("{USER_KEY}\n"), true),
            (format!("# {USER_KEY}\n"), false),
            (format!("cert-authority {USER_KEY}\n"), false),
            (format!("{CLIENT_KEY}\n"), false),
        ] {
            assert_eq!(is_listed(&user, &list, USER_KEY), counts, "{list}");
        }
    }

    #[test]
    fn input_is_shown_as_a_shell_takes_it() {
        let step = Step::new(Side::Server, &["tee", "/a b"]).reading("x\n  y\n".into());
        assert_eq!(step.command(), "tee '/a b' <<'END'\nx\n  y\nEND");
    }
}
