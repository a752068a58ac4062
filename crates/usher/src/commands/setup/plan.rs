//! The commands of `usher setup`: a pure function of what both hosts are.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use usher_base::{HostName, UserName};
use usher_local::keys::{UserKey, parse_keys};
use usher_local::paths;
use usher_policy::{Host, Policy};
use usher_proto::HostPublicKey;
use usher_proto::ssh_key::PublicKey;

use super::facts::{Facts, PolicyFile};
use super::machine::quoted;
use crate::failure::Failure;

/// The address at which the proxy stands for the server, as docs/start.md has it.
const LOOPBACK: &str = "127.0.2.1";

/// A service that the server can offer at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Offered {
    /// /usr/bin/id at port 3443, which says as whom it runs
    Whoami,
    /// Debian's dovecot-imapd at port 143, with the mail of ~/Maildir
    Imap,
}

/// One of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Client,
    /// The one that ssh reaches.
    Server,
}

/// A command on one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where it runs.
    pub side: Side,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Its standard input; nothing if none.
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

/// What is to be set up.
#[derive(Debug)]
pub struct Site {
    /// Name of this host.
    pub client: HostName,
    /// Name of the server.
    pub server: HostName,
    /// Address of this host.
    pub address: IpAddr,
    /// Address of the server.
    pub server_address: IpAddr,
    /// The first user.
    pub user: UserName,
    /// What is served.
    pub offered: Offered,
    /// The file in which a new key of the user is for as long as this runs.
    pub key: PathBuf,
}

impl Site {
    /// What it is for, for people.
    pub fn purpose(&self) -> String {
        let service = match self.offered {
            Offered::Whoami => "/usr/bin/id at TCP port 3443",
            Offered::Imap => "dovecot's imap at TCP port 143",
        };
        let (user, server) = (&self.user, &self.server);
        format!(
            "{user} of {} ({}) is to be served {service} by {server} ({}), as {user}. For this, these commands \
             run:",
            self.client, self.address, self.server_address
        )
    }

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

    /// The steps that make what the others need: keys.
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

    /// The other steps. A word stands for each thing that the first steps have not made yet.
    ///
    /// # Errors
    /// When a file of one host says something else about a host.
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

    /// Makes one host known to the other, unless it is.
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

    /// The policy that it writes.
    fn policy(&self, side: Side) -> String {
        let Self {
            client,
            server,
            user,
            ..
        } = self;
        let block = match (side, self.offered) {
            (Side::Server, Offered::Whoami) => format!(
                r#"service whoami {{
  program "/usr/bin/id";
  listen 3443;
  style connection;
  users setup;
  hosts {client};
}}"#
            ),
            (Side::Server, Offered::Imap) => format!(
                r#"service imap {{
  program "/usr/lib/dovecot/imap" "-k" "-o" "mail_location=maildir:~/Maildir"
    "-o" "mail_driver=maildir" "-o" "mail_path=~/Maildir" "-o" "mail_inbox_path=~/Maildir"
    "-o" "stats_writer_socket_path=";
  listen 143;
  style connection;
  users setup;
  hosts {client};
}}"#
            ),
            (Side::Client, Offered::Whoami) => format!(
                "client setup {{\n  users setup;\n  service whoami at {server} port 3443;\n}}"
            ),
            (Side::Client, Offered::Imap) => format!(
                "client setup {{\n  users setup;\n  service imap at {server} port 143;\n  protocol imap;\n}}"
            ),
        };
        format!("# Written by `usher setup`.\n\nusers setup {{\n  member {user};\n}}\n\n{block}\n")
    }

    fn policy_path(&self) -> String {
        format!("{}/setup.policy", paths::POLICY_DIRECTORY)
    }

    fn service(&self) -> &'static str {
        match self.offered {
            Offered::Whoami => "whoami",
            Offered::Imap => "imap",
        }
    }

    fn name(&self, side: Side) -> &HostName {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
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
    use usher_policy::{Source, parse_policy};

    use super::*;

    const CLIENT_KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea laptop";
    const SERVER_KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID1AF8PoQ4laki/lQKfo+nDUyDUIQbzwZzJj+yvvb7oo mailhost";
    const USER_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG/kNziXQpQi0AFJCKGW0vsllqBnwekfni2XQY5hfnUW alice@laptop";

    fn site(offered: Offered) -> Site {
        Site {
            client: "laptop".parse().expect("a name"),
            server: "mailhost".parse().expect("a name"),
            address: [192, 0, 2, 1].into(),
            server_address: [192, 0, 2, 2].into(),
            user: "alice".parse().expect("a name"),
            offered,
            key: "/run/x/key".into(),
        }
    }

    fn fresh() -> Facts {
        Facts {
            root: true,
            account: Some(1000),
            ..Facts::default()
        }
    }

    fn commands(steps: &[Step]) -> Vec<String> {
        let begin = |step: &Step| format!("{:?} {}", step.side, quoted(&step.words));
        steps.iter().map(begin).collect()
    }

    fn refusal(here: &Facts, there: &Facts) -> String {
        let refused = site(Offered::Whoami).require(here, there);
        refused.expect_err("a refusal").to_string()
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

    /// A host's block as `usher host add` writes it.
    fn block(name: &str, address: &str, key: &str) -> PolicyFile {
        let key = key.rsplit_once(' ').expect("a comment").0;
        PolicyFile {
            path: format!("/etc/usher/policy.d/host-{name}.policy"),
            text: format!("host {name} {{ address {address}; key \"{key}\"; }}"),
        }
    }

    fn set_up(side: Side) -> Facts {
        let site = site(Offered::Whoami);
        Facts {
            key: Some(
                if side == Side::Client {
                    CLIENT_KEY
                } else {
                    SERVER_KEY
                }
                .into(),
            ),
            policy: vec![
                PolicyFile {
                    path: "/etc/usher/policy.d/10-local.policy".into(),
                    text: include_str!("../example.policy").into(),
                },
                block("laptop", "192.0.2.1", CLIENT_KEY),
                block("mailhost", "192.0.2.2", SERVER_KEY),
                PolicyFile {
                    path: site.policy_path(),
                    text: site.policy(side),
                },
            ],
            signs_by: (side == Side::Client).then(|| USER_KEY.into()),
            listed: format!("expiry-time=\"20990101Z\" {USER_KEY}\n"),
            ..fresh()
        }
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

    #[test]
    fn the_policies_are_sound() {
        for offered in [Offered::Whoami, Offered::Imap] {
            let site = site(offered);
            for side in [Side::Client, Side::Server] {
                let hosts = [
                    block("laptop", "192.0.2.1", CLIENT_KEY),
                    block("mailhost", "192.0.2.2", SERVER_KEY),
                ];
                let own = ("setup.policy".to_owned(), site.policy(side));
                let files = hosts
                    .map(|file| (file.path, file.text))
                    .into_iter()
                    .chain([own]);
                let sources: Vec<Source> =
                    files.map(|(name, text)| Source { name, text }).collect();
                let policy = parse_policy(&sources).expect("a sound policy");
                assert_eq!(policy.services.len() + policy.clients.len(), 1);
            }
        }
    }

    #[test]
    fn input_is_shown_as_a_shell_takes_it() {
        let step = Step::new(Side::Server, &["tee", "/a b"]).reading("x\n  y\n".into());
        assert_eq!(step.command(), "tee '/a b' <<'END'\nx\n  y\nEND");
    }
}
