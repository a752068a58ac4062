//! Turns settings of the policy, and its services, into settings of the kernel: names of users, groups and
//! file systems become numbers.

use std::collections::{BTreeMap, BTreeSet};

use nix::unistd::{Group, User};
use usher_mac::ubns::{DestinationRange, ServiceSettings};
use usher_mac::{Names, Settings};
use usher_policy::mac::bsdextended::AccessRule;
use usher_policy::mac::{AccountId, MacBlock, ModuleSettings};
use usher_policy::{Policy, ServedBy};

use super::error::MacError;
use super::file_systems::{FileSystems, NOWHERE};

/// This process's network namespace.
const NETWORK: &str = "/proc/self/ns/net";

/// Looks up names, each of them once.
pub(super) struct Resolver<'f> {
    file_systems: &'f FileSystems,
    /// The paths of `filesys` where nothing is mounted, so their rules wait; with the error.
    pub(super) unmounted: Vec<(String, MacError)>,
    pub(super) users: Accounts,
    pub(super) groups: Accounts,
}

/// The users or the groups of this host.
pub(super) struct Accounts {
    noun: &'static str,
    look_up: fn(&str) -> nix::Result<Option<u32>>,
    known: BTreeMap<String, u32>,
}

impl<'f> Resolver<'f> {
    pub(super) fn new(file_systems: &'f FileSystems) -> Self {
        Self {
            file_systems,
            unmounted: Vec::new(),
            users: Accounts::new("user", |name| {
                Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
            }),
            groups: Accounts::new("group", |name| {
                Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
            }),
        }
    }

    /// The settings of a block. `None`: its module has no settings.
    ///
    /// # Errors
    /// The first name that this host does not know, with its rule.
    pub(super) fn settings(&mut self, block: &MacBlock) -> Result<Option<Settings>, MacError> {
        match &block.settings {
            ModuleSettings::Nothing
            | ModuleSettings::Framework(_)
            // The module's file declares what these statements mean.
            | ModuleSettings::Declared(_) => Ok(None),
            ModuleSettings::Bsdextended(rules) => {
                let mut names = self.names(block)?;
                for rule in rules {
                    if let Some((_, path)) = &rule.object.file_system
                        && !names.devices.contains_key(path)
                    {
                        let (device, mounted) = device(self.file_systems, rule, path);
                        names.devices.insert(path.clone(), device);
                        let unmounted = mounted.err().map(|error| (path.clone(), error));
                        self.unmounted.extend(unmounted);
                    }
                }
                Ok(Some(Settings::Bsdextended(rules.clone(), names)))
            }
            ModuleSettings::Portacl(ports) => {
                Ok(Some(Settings::Portacl(ports.clone(), self.names(block)?)))
            }
            ModuleSettings::Seeotheruids(exempt) => {
                Ok(Some(Settings::Seeotheruids(exempt.clone(), self.names(block)?)))
            }
            ModuleSettings::Ifoff(silence) => {
                let names = Names {
                    network: network()?,
                    ..Names::default()
                };
                Ok(Some(Settings::Ifoff(silence.clone(), names)))
            }
            ModuleSettings::Te(types) => Ok(Some(Settings::Te(types.clone()))),
        }
    }

    /// The meanings of the names in a block.
    fn names(&mut self, block: &MacBlock) -> Result<Names, MacError> {
        let mut names = Names::default();
        for account in block.accounts() {
            let (numbers, known) = if account.is_group {
                (&mut self.groups, &mut names.groups)
            } else {
                (&mut self.users, &mut names.users)
            };
            let number = numbers.named(account.name, &account.origin.place.to_string())?;
            known.insert(account.name.to_owned(), number);
        }
        Ok(names)
    }

    /// The services of a policy, for the module `ubns`.
    ///
    /// # Errors
    /// The first account that this host does not know, with its service.
    pub(super) fn services(&mut self, policy: &Policy) -> Result<Settings, MacError> {
        let services = policy.services.values().map(|service| {
            let account = match &service.served_by {
                ServedBy::Program(_) | ServedBy::Backend(_) => None,
                ServedBy::Account(account) => {
                    let place = format!("service {}", service.name);
                    Some(self.users.named(account.as_ref(), &place)?)
                }
            };
            let connect = service.connect.as_ref().map(|connect| {
                let entries = connect.entries.iter().flat_map(|entry| {
                    let ports = entry
                        .ports
                        .map_or((0, u16::MAX), |ports| (ports.first, ports.last));
                    entry.addresses.iter().map(move |range| DestinationRange {
                        first: range.first(),
                        last: range.last(),
                        ports,
                    })
                });
                entries.collect()
            });
            Ok(ServiceSettings {
                name: service.name.to_string(),
                port: service.listen,
                account,
                connect,
            })
        });
        let services: Result<_, MacError> = services.collect();
        Ok(Settings::Ubns(services?))
    }
}

/// The device of the file system that is mounted at the path of a rule. If none is mounted: the reason, and
/// the device of the file system that was mounted there last while that is in use, otherwise [`NOWHERE`].
fn device(
    file_systems: &FileSystems,
    rule: &AccessRule,
    path: &str,
) -> ((u32, u32), Result<(), MacError>) {
    let found = file_systems.device(path);
    let last = || file_systems.elsewhere(path).unwrap_or(NOWHERE);
    let device = found.as_ref().copied().unwrap_or_else(|_| last());
    let mounted = found.map(drop).map_err(|error| MacError::NotMounted {
        place: rule.origin.place.to_string(),
        statement: "filesys",
        path: path.to_owned(),
        error,
    });
    (device, mounted)
}

/// Makes rules apply to the file systems mounted at their paths now. Users and groups are not looked up
/// again.
///
/// # Errors
/// The first path where nothing is mounted, or that gets no answer. Rules about a path without an answer stay
/// as they are. Other rules stay about the former file system while it is in use elsewhere, or else wait.
pub(super) fn follow_mounts(
    file_systems: &FileSystems,
    rules: &[AccessRule],
    names: &mut Names,
) -> Result<(), MacError> {
    let (mut all, mut asked) = (Ok(()), BTreeSet::new());
    for rule in rules {
        let Some((_, path)) = &rule.object.file_system else {
            continue;
        };
        if !asked.insert(path) {
            continue;
        }
        match device(file_systems, rule, path) {
            // Otherwise a user could disable the rule by a file system that does not answer.
            (_, Err(error)) if error.is_unanswered() => all = all.and(Err(error)),
            (device, mounted) => {
                names.devices.insert(path.clone(), device);
                let trouble = if device == NOWHERE {
                    MacError::Waits
                } else {
                    MacError::Stays
                };
                all = all.and(mounted.map_err(|error| trouble(Box::new(error))));
            }
        }
    }
    all
}

/// The paths of file systems in rules of the policy.
pub(super) fn named_file_systems(policy: Option<&Policy>) -> impl Iterator<Item = &String> {
    let blocks = policy.into_iter().flat_map(|policy| &policy.mac);
    let rules = blocks.flat_map(|block| match &block.settings {
        ModuleSettings::Bsdextended(rules) => rules.as_slice(),
        _ => &[],
    });
    let named = rules.filter_map(|rule| rule.object.file_system.as_ref());
    named.map(|(_, path)| path)
}

/// Whether a rule of the policy names this file system.
pub(super) fn names_file_system(policy: Option<&Policy>, path: &str) -> bool {
    named_file_systems(policy).any(|named| named == path)
}

/// The number of this process's network namespace, in which the names of interfaces are valid.
fn network() -> Result<u32, MacError> {
    let network = rustix::fs::stat(NETWORK).map_err(|error| MacError::Network(error.into()))?;
    // The kernel numbers namespaces with 32 bits.
    Ok(network.st_ino as u32)
}

impl Accounts {
    fn new(noun: &'static str, look_up: fn(&str) -> nix::Result<Option<u32>>) -> Self {
        let known = BTreeMap::new();
        Self {
            noun,
            look_up,
            known,
        }
    }

    /// The number of a name, looked up once.
    fn named(&mut self, name: &str, place: &str) -> Result<u32, MacError> {
        if let Some(id) = self.known.get(name) {
            return Ok(*id);
        }
        let (place, noun, name) = (place.to_owned(), self.noun, name.to_owned());
        match (self.look_up)(&name) {
            Ok(Some(id)) => {
                self.known.insert(name, id);
                Ok(id)
            }
            Ok(None) => Err(MacError::Unknown { place, noun, name }),
            Err(error) => Err(MacError::LookUp {
                place,
                noun,
                name,
                error: error.into(),
            }),
        }
    }

    pub(super) fn one(&mut self, account: &AccountId, place: &str) -> Result<u32, MacError> {
        match account {
            AccountId::Number(number) => Ok(*number),
            AccountId::Name(name) => self.named(name, place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use usher_mac::Module;

    fn file_systems() -> FileSystems {
        FileSystems::new(File::open("/proc/self/mountinfo").unwrap())
    }

    fn resolved(rules: &str) -> Result<Option<Settings>, MacError> {
        settings_of(&format!("mac bsdextended {{\n{rules}\n}}"))
    }

    /// The settings of the only block.
    fn settings_of(block: &str) -> Result<Option<Settings>, MacError> {
        let source = usher_policy::Source {
            name: "a.policy".into(),
            text: block.into(),
        };
        let policy = usher_policy::parse_policy(&[source]).unwrap();
        Resolver::new(&file_systems()).settings(&policy.mac[0])
    }

    #[test]
    fn names_of_rules_become_numbers() {
        let text =
            "rule subject uid root 5:9 not gid daemon object uid daemon not gid root mode n;";
        let Ok(Some(Settings::Bsdextended(_, names))) = resolved(text) else {
            panic!("rules");
        };
        // Accounts of every host.
        let accounts = || [("daemon".to_owned(), 1), ("root".to_owned(), 0)].into();
        let expected = Names {
            users: accounts(),
            groups: accounts(),
            ..Names::default()
        };
        assert_eq!(names, expected);
    }

    #[test]
    fn unknown_names_are_refused_with_their_rule() {
        let refused = resolved("rule mode r;\nrule subject uid no-such-user mode r;").unwrap_err();
        let said =
            "a.policy:3:1: this host has no user no-such-user; create it, or correct the name";
        assert_eq!(refused.to_string(), said);
        let refused = resolved("rule object gid no-such-group mode r;").unwrap_err();
        assert!(
            refused.to_string().contains("no group no-such-group"),
            "{refused}"
        );
    }

    #[test]
    fn a_rule_waits_where_nothing_is_mounted_and_moves_when_something_is() {
        let text = "mac bsdextended {
            rule object not filesys \"/no/such/path\" mode r;
            rule object filesys \"/proc\" uid root mode r;
        }";
        let name = "a.policy".into();
        let text = text.into();
        let policy = usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap();
        let file_systems = file_systems();
        let mut resolver = Resolver::new(&file_systems);
        let settings = resolver.settings(&policy.mac[0]).unwrap();
        let Some(Settings::Bsdextended(rules, mut names)) = settings else {
            panic!("rules");
        };
        let (path, reason) = &resolver.unmounted[0];
        let said = format!("a.policy:2:13: filesys {path}: ");
        assert!(reason.to_string().starts_with(&said), "{reason}");
        let proc = file_systems.device("/proc").unwrap();
        assert_eq!(names.devices["/no/such/path"], NOWHERE);
        assert_eq!(names.devices["/proc"], proc);
        assert_eq!(names.users, [("root".to_owned(), 0)].into());

        // Devices that no longer fit, as after mounting and unmounting.
        let now = names.clone();
        names.devices.insert(path.clone(), proc);
        names.devices.insert("/proc".to_owned(), NOWHERE);
        let waits = follow_mounts(&file_systems, &rules, &mut names).unwrap_err();
        assert!(waits.to_string().contains("; the rule waits"), "{waits}");
        assert_eq!(names, now);
        assert!(follow_mounts(&file_systems, &rules[1..], &mut names).is_ok());
        assert!(names_file_system(Some(&policy), "/proc"));
        assert!(!names_file_system(Some(&policy), "/pro") && !names_file_system(None, "/proc"));
    }

    // Threat model: M103
    #[test]
    fn a_rule_stays_where_its_path_gets_no_answer() {
        let text = "mac bsdextended { rule object filesys \"/proc\" mode r; }";
        let (name, text) = ("a.policy".into(), text.into());
        let policy = usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap();
        let file_systems = file_systems();
        let settings = Resolver::new(&file_systems).settings(&policy.mac[0]);
        let Ok(Some(Settings::Bsdextended(rules, mut names))) = settings else {
            panic!("rules");
        };
        let before = names.clone();
        let hangs = file_systems.mounted("/proc", |_| {
            loop {
                std::thread::park();
            }
        });
        assert_eq!(hangs.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        let said = follow_mounts(&file_systems, &rules, &mut names).unwrap_err();
        assert!(said.is_unanswered(), "{said}");
        assert_eq!(names, before);
    }

    #[test]
    fn permits_of_ports_name_users_and_groups_of_this_host() {
        let text = "mac portacl { permit user daemon tcp 80; permit group 7 udp 53; }";
        let Ok(Some(Settings::Portacl(_, names))) = settings_of(text) else {
            panic!("ports");
        };
        // Every host has this account. Numbers need no look-up.
        let users = [("daemon".to_owned(), 1)].into();
        let expected = Names {
            users,
            ..Names::default()
        };
        assert_eq!(names, expected);
        let refused = settings_of("mac portacl {\n permit group no-such tcp 80; }").unwrap_err();
        let said = "a.policy:2:2: this host has no group no-such; create it, or correct the name";
        assert_eq!(refused.to_string(), said);
    }

    #[test]
    fn the_exempt_group_is_one_of_this_host() {
        let exempt =
            |statements: &str| settings_of(&format!("mac seeotheruids {{ {statements} }}"));
        let found = exempt("specificgid root; primarygroup yes;").unwrap();
        let Some(Settings::Seeotheruids(_, names)) = found else {
            panic!("{found:?}");
        };
        assert_eq!(names.groups, [("root".to_owned(), 0)].into());
        let found = exempt("").unwrap();
        assert_eq!(
            found,
            Module::named("seeotheruids").and_then(|module| module.settings().cloned())
        );
        let refused = exempt("specificgid no-such;").unwrap_err().to_string();
        let said = "a.policy:1:20: this host has no group no-such; create it, or correct the name";
        assert_eq!(refused, said);
    }

    #[test]
    fn switches_are_about_interfaces_of_this_network_namespace() {
        let Ok(Some(Settings::Ifoff(_, names))) = settings_of("mac ifoff { }") else {
            panic!("interfaces");
        };
        let own = std::fs::read_link(NETWORK).unwrap();
        assert_eq!(own.to_str(), Some(&*format!("net:[{}]", names.network)));
    }

    #[test]
    fn services_keep_what_the_kernel_decides_by() {
        let policy = |account: &str| {
            let text = format!(
                "users mail {{ member alice; }}
                 service imap {{
                   program \"/bin/true\"; listen 143; users mail; hosts any; style user;
                   connect 192.0.2.0/24 port 25 - 26, 2001:db8::1;
                 }}
                 service notes {{
                   account {account}; listen 8080; users mail; hosts any; style user;
                 }}"
            );
            let name = "a.policy".into();
            usher_policy::parse_policy(&[usher_policy::Source { name, text }]).unwrap()
        };
        let services = |account: &str| Resolver::new(&file_systems()).services(&policy(account));
        let to = |first: &str, last: &str, ports| DestinationRange {
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
            ports,
        };
        let expected = vec![
            ServiceSettings {
                name: "imap".into(),
                port: 143,
                account: None,
                connect: Some(vec![
                    to("192.0.2.0", "192.0.2.255", (25, 26)),
                    to("2001:db8::1", "2001:db8::1", (0, 65535)),
                ]),
            },
            ServiceSettings {
                name: "notes".into(),
                port: 8080,
                account: Some(1),
                connect: None,
            },
        ];
        // An account of every host.
        assert_eq!(services("daemon").unwrap(), Settings::Ubns(expected));
        let refused = services("no-such-user").unwrap_err().to_string();
        let said =
            "service notes: this host has no user no-such-user; create it, or correct the name";
        assert_eq!(refused, said);
    }
}
