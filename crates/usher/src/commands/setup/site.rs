//! The description of what `usher setup` sets up: two hosts, a user, a service, and the policies for them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;
use usher_base::{HostName, UserName};
use usher_local::paths;

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
    /// This host.
    Client,
    /// The host that ssh reaches.
    Server,
}

/// Two hosts that are to be set up, for a user.
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
    /// The service.
    pub offered: Offered,
    /// The file in which a new key of the user is for as long as this runs.
    pub key: PathBuf,
}

impl Site {
    /// The purpose of the setup, for people.
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

    /// The text of a host's policy.
    pub fn policy(&self, side: Side) -> String {
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

    /// The file for the policy.
    pub fn policy_path(&self) -> String {
        format!("{}/setup.policy", paths::POLICY_DIRECTORY)
    }

    /// The name of the service.
    pub fn service(&self) -> &'static str {
        match self.offered {
            Offered::Whoami => "whoami",
            Offered::Imap => "imap",
        }
    }

    /// The name of a host.
    pub fn name(&self, side: Side) -> &HostName {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use usher_policy::{Source, parse_policy};

    use super::super::facts::{Facts, PolicyFile};
    use super::*;

    pub const CLIENT_KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea laptop";
    pub const SERVER_KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID1AF8PoQ4laki/lQKfo+nDUyDUIQbzwZzJj+yvvb7oo mailhost";
    pub const USER_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG/kNziXQpQi0AFJCKGW0vsllqBnwekfni2XQY5hfnUW alice@laptop";

    pub fn site(offered: Offered) -> Site {
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

    pub fn fresh() -> Facts {
        Facts {
            root: true,
            account: Some(1000),
            ..Facts::default()
        }
    }

    /// A host's block as `usher host add` writes it.
    pub fn block(name: &str, address: &str, key: &str) -> PolicyFile {
        let key = key.rsplit_once(' ').expect("a comment").0;
        PolicyFile {
            path: format!("/etc/usher/policy.d/host-{name}.policy"),
            text: format!("host {name} {{ address {address}; key \"{key}\"; }}"),
        }
    }

    /// A host that is set up.
    pub fn set_up(side: Side) -> Facts {
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
                    path: format!("{}/10-local.policy", paths::POLICY_DIRECTORY),
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
}
