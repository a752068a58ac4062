//! What to do about each mistake.

use crate::destinations::MAXIMUM_DESTINATIONS;
use crate::error::{AddressFault, EnvironmentFault, NameKind, PolicyErrorKind};
use crate::keywords::{ACCOUNT_FORM, ITEM_FORM, PROGRAM_FORM, outer_words};
use crate::model::{
    MAXIMUM_CPU, MAXIMUM_DURATION, MAXIMUM_FILE_RULES, MAXIMUM_HOST_ADDRESSES, MAXIMUM_PROGRAMS,
    Style,
};
use crate::source::MAXIMUM_SOURCE_BYTES;

impl PolicyErrorKind {
    /// What to do about it: one sentence for the administrator.
    pub fn remedy(&self) -> String {
        match self {
            Self::SourceTooLong { .. } => {
                format!("split it into files of at most {MAXIMUM_SOURCE_BYTES} bytes")
            }
            Self::NotUtf8 { .. } => {
                "write the file in UTF-8; iconv(1) converts it from another encoding".into()
            }
            Self::TooManyStatements => {
                "name several users in one `member` statement, and remove what is not needed".into()
            }
            Self::TooManyErrors => "correct those above and check again".into(),
            Self::ForbiddenCharacter { .. } => {
                "remove it; such characters make a policy look like something it is not".into()
            }
            Self::UnterminatedString => {
                "end it with `\"`; a line end within a string is written `\\n`".into()
            }
            Self::UnknownEscape { .. } => {
                r#"write `\\` for a backslash; there are `\\`, `\"`, `\n` and `\t`"#.into()
            }
            Self::ExpectedBlock => {
                format!("begin with {}", outer_list("or"))
            }
            Self::UnknownBlock { nearest, .. } => {
                did_you_mean(nearest, &format!("there are {}", outer_list("and")))
            }
            Self::StatementOutsideBlock { block, .. } => {
                format!(
                    "move it into {} block, or see whether a `}}` stands too early",
                    block.one()
                )
            }
            Self::MissingOpen { block } => format!("write `{block} NAME {{ ... }}`"),
            Self::MissingBlockName { block } => format!("write `{block} NAME {{ ... }}`"),
            Self::SecondBlockName { block, .. } if block.has_names() => {
                "separate the names by commas".into()
            }
            Self::SecondBlockName { block, .. } => {
                format!("{} block has one name: make a block for each", block.one())
            }
            Self::UnclosedBlock { .. } => "write `}` after its last statement".into(),
            Self::MissingClose { .. } => "write `}` before it".into(),
            Self::StatementWithBraces { .. } => "end it with `;`".into(),
            Self::NestedBlock => "statements end with `;` and have no braces".into(),
            Self::UnmatchedClose => "remove it, or see whether a `{` is missing above".into(),
            Self::UnmatchedOpen => "write the `}` that belongs to it".into(),
            Self::ExpectedStatement => {
                "a statement is a keyword, its values, and one `;`; remove what is too much".into()
            }
            Self::MissingSemicolon { .. } => "write `;` here".into(),
            Self::NothingBeforeComma | Self::NothingAfterComma => {
                "remove the comma, or write what is missing".into()
            }
            Self::UnknownStatement { block, nearest, .. } => {
                let known: Vec<_> = block.rules().iter().map(|rule| rule.keyword).collect();
                did_you_mean(
                    nearest,
                    &format!("{} block has {}", block.one(), known.join(", ")),
                )
            }
            Self::MissingStatement { form, .. } => format!("add {form}"),
            Self::RepeatedStatement { .. } | Self::RepeatedOuterStatement { .. } => {
                "make one statement of the two".into()
            }
            Self::MissingValue { form, .. } | Self::UnexpectedValue { form, .. } => {
                format!("write {form}")
            }
            Self::ExpectedString { .. } => "put it between `\"` and `\"`".into(),
            Self::ExpectedWord { .. } => "leave the quotes out".into(),
            Self::NotForStyle { statement, style } => {
                let other = match style {
                    Style::Connection => Style::User,
                    Style::User => Style::Connection,
                };
                format!("remove `{statement}`; it is for `style {other}`")
            }
            Self::NotServed => format!("add {PROGRAM_FORM} or {ACCOUNT_FORM}"),
            Self::ServedTwice { .. } => {
                "keep `program` when the keeper starts the service's processes, `account` when \
                 the service manager does and they use the calls"
                    .into()
            }
            Self::SetuidWithFiles { .. } => {
                "keep one of the two: the kernel confines a process only when nothing that it \
                 executes gains rights (no_new_privs)"
                    .into()
            }
            Self::InvalidUmask { .. } => "write three octal digits, as 027 or 077".into(),
            Self::NotForAccount { statement } => {
                format!("remove `{statement}`; it is for `program`")
            }
            Self::PamSessionForAccount => {
                "remove `pam session`, or have the keeper start the service by `program`; the account \
                 phase is asked in any case, and the service's unit can set limits for all of its \
                 processes (LimitNOFILE= and the like)"
                    .into()
            }
            Self::InvalidName { name, .. } => name.rule().into(),
            Self::InvalidApplication { .. } => {
                "write a name such as sshd, of letters, digits, `_`, `.`, `+` and `-`, or a path \
                 such as /usr/sbin/sshd"
                    .into()
            }
            Self::InvalidNetwork { .. } => {
                "write an address, a network such as 192.0.2.0/24, a range such as 192.0.2.1 - \
                 192.0.2.9, or a host name of at most 63 characters"
                    .into()
            }
            Self::RangeBackwards { .. } => "write the lower address first".into(),
            Self::NetworkHostBits { network, .. } => {
                format!("write {network}, or the address alone when one machine is meant")
            }
            Self::MappedNetwork { .. } => "write the IPv4 address".into(),
            Self::InvalidItemPort { .. } => {
                format!("write {ITEM_FORM}; ports are numbers from 1 to 65535")
            }
            Self::UnresolvedName { .. } => {
                "write its address, give it a `host` block, or see to it that this host finds the \
                 name"
                    .into()
            }
            Self::UnresolvedGroup { name, .. } => format!(
                "see to it that `getent group {name}` finds it and ask again; in a copy of \
                 /etc/usher the file `groups` has the lines that it prints on that host"
            ),
            Self::InvalidAddress { .. } => {
                "write an address such as 192.0.2.7 or 2001:db8::7; names are not looked up".into()
            }
            Self::UnusableAddress {
                fault: AddressFault::MappedIpv4,
                address,
            } => {
                format!("write {}", address.to_canonical())
            }
            Self::UnusableAddress { .. } => {
                "write the unicast address at which the other hosts reach it".into()
            }
            Self::InvalidLoopback { .. } => {
                "write an address of 127.0.0.0/8 that nothing else uses, such as 127.0.2.1; not \
                 127.0.0.1, 127.0.0.0 or 127.255.255.255"
                    .into()
            }
            Self::TooManyAddresses => {
                format!("keep the {MAXIMUM_HOST_ADDRESSES} that others reach best")
            }
            Self::InvalidHostKey => {
                "write the host's public key in quotes, as `ssh-ed25519 AAAA...`: the line of its \
                 .pub file"
                    .into()
            }
            Self::InvalidPort { .. } => "write a number from 1 to 65535".into(),
            Self::InvalidNumber { maximum, .. } => format!("write a number from 1 to {maximum}"),
            Self::InvalidMemory { .. } => {
                "write a whole number and a unit, such as 512M or 4G; 1M at least, 1024T at most"
                    .into()
            }
            Self::InvalidCpu { .. } => format!(
                "write a percentage of one processor's time, such as 50% or 200%; 1% to \
                 {MAXIMUM_CPU}%"
            ),
            Self::InvalidDuration { .. } => {
                "write a whole number and a unit, such as 90s, 5m or 8h".into()
            }
            Self::InvalidTime { .. } => {
                "write date and time as 2026-12-31T18:00Z, in UTC, with seconds or without".into()
            }
            Self::DurationOutOfRange { shortest, .. } => {
                let longest = MAXIMUM_DURATION.as_secs() / 3600;
                format!("write {}s to {longest}h", shortest.as_secs())
            }
            Self::InvalidInclude { .. } => {
                "name one file: its path from `/` on, or from the folder of this file on".into()
            }
            Self::UnreadableInclude { .. } => {
                "correct the path, which goes from the folder of this file on unless it begins \
                 with `/`, put the file there, or remove the statement"
                    .into()
            }
            Self::InvalidProgram { .. } => {
                "write the path from `/` on, without `.`, `..`, `//` or a `/` at the end".into()
            }
            Self::InvalidFilePath { .. } => {
                "write the path from `/` on, or `~` for the user's home \
                 and `~/...` for what is in it, without `.`, `..`, `//` or a `/` at the end"
                    .into()
            }
            Self::MissingFileAccess { .. } => "write `read` or `write` after the path".into(),
            Self::TooManyFileRules { .. } => {
                format!("name at most {MAXIMUM_FILE_RULES}: folders stand for what is in them")
            }
            Self::TooManyDestinations { .. } => format!(
                "name at most {MAXIMUM_DESTINATIONS}: networks stand for the addresses in them"
            ),
            Self::DestinationsTooFine { .. } => {
                "name networks (`a/n`) in place of ranges that begin or end between two".into()
            }
            Self::NoneIsNotAlone => {
                "write `connect none;`, or where the service may connect without `none`".into()
            }
            Self::UnspecifiedDestination { address } => {
                let own = if address.is_ipv4() {
                    "127.0.0.1"
                } else {
                    "::1"
                };
                format!("write {address}/0 for all addresses, or {own} for this host")
            }
            Self::InvalidPorts { .. } => "write a number from 1 to 65535, or two with `-`".into(),
            Self::PortsBackwards { .. } => "write the lower port first".into(),
            Self::TooManyPrograms { .. } => format!("name at most {MAXIMUM_PROGRAMS}, or `any`"),
            Self::ArgumentsTooLong { .. } => "move some of it into a file that it reads".into(),
            Self::InvalidEnvironment { fault, .. } => match fault {
                EnvironmentFault::NoEqualSign | EnvironmentFault::InvalidName => {
                    "write \"NAME=VALUE\"; NAME is of A-Z, 0-9 and `_`".into()
                }
                EnvironmentFault::Reserved => {
                    "remove it; HOME, USER, LOGNAME, SHELL, PATH, LISTEN_* and USHER_* are set \
                     for each user"
                        .into()
                }
                EnvironmentFault::Repeated => "keep one of the two".into(),
            },
            Self::UnknownChoice { choices, .. } => format!("write {}", choices.join(" or ")),
            Self::AnyIsNotAlone { form, .. } => format!("write {form}"),
            Self::RootAsMember => {
                "name an ordinary account; no service is ever run as root for a remote user".into()
            }
            Self::RootAsAccount => {
                "name an ordinary account of the service's own; a service needs two capabilities \
                 to become its users, not root"
                    .into()
            }
            Self::UshersAccount { .. } => {
                "name another account: those whose names begin with `usher-` hold the keys and \
                 sockets of Usher's daemons"
                    .into()
            }
            Self::AccountIsUser { .. } => {
                "name an account that is in none of the service's `users` blocks, or take it out \
                 of them"
                    .into()
            }
            Self::PrincipalsOfClient { .. } => {
                "name a set without `principal`: certificates are judged by the host of the \
                 service, and a client's host knows its users by their accounts"
                    .into()
            }
            Self::UnknownUsers { nearest, found } => did_you_mean(
                nearest,
                &format!("add `users {found} {{ member USER, ...; }}`"),
            ),
            Self::UnknownHost { nearest, found } => {
                did_you_mean(nearest, &format!("add a block `host {found} {{ ... }}`"))
            }
            Self::UnknownProtection { nearest, found } => did_you_mean(
                nearest,
                &format!("add a block `protection {found} {{ ... }}` to this `application` block"),
            ),
            Self::DuplicateApplication { .. } => {
                "write all of a program's policy in one `application` block".into()
            }
            Self::DuplicateBlock { .. } => "rename one, or make one block of the two".into(),
            Self::ListedTwice { .. } => "keep one of the two".into(),
            Self::DuplicateAddress { .. } => {
                "an address belongs to one host and stands once; correct one of the two".into()
            }
            Self::DuplicateKey { .. } => {
                "every host has a key of its own; correct one of the two, and if both machines \
                 really hold this key, make a new one on one of them"
                    .into()
            }
            Self::DuplicateListen { .. } => "give one of the services another port".into(),
            Self::ListenOnControl { .. } | Self::ListenOnDefaultControl { .. } => {
                "give the service another port, or the control channel".into()
            }
            Self::ServiceNumberCollision { .. } => "rename one of the services".into(),
            Self::DuplicateClientService { .. } => {
                "keep one, in a block that names all its users".into()
            }
            Self::DuplicateClientPort { .. } => {
                "a port of a host has one service; correct one of the two".into()
            }
        }
    }
}

impl NameKind {
    /// Which names there can be.
    fn rule(self) -> &'static str {
        match self {
            Self::User => {
                "a user name is a small letter or `_`, then small letters, digits, `_`, `.` or \
                 `-`, at most 32 in all"
            }
            Self::Account => {
                "an account name is a small letter or `_`, then small letters, digits, `_`, `.` \
                 or `-`, at most 32 in all"
            }
            Self::Service => {
                "a service name is a letter or digit, then letters, digits, `_`, `.` or `-`, at \
                 most 32 in all"
            }
            Self::Host => {
                "a host name is a letter or digit, then letters, digits, `.` or `-`, at most 63 \
                 in all, and not `any`"
            }
            Self::Block => {
                "the name of a block is a letter or digit, then letters, digits, `_`, `.` or `-`, \
                 at most 32 in all, and not `any`"
            }
            Self::Key => {
                "what keys are for is named by a letter or digit, then letters, digits, `_`, `.` \
                 or `-`, at most 32 in all, and not `any`"
            }
            Self::Group => {
                "the name of a group is a letter, digit or `_`, then letters, digits and `_ . - @ \
                 + \\ $`, at most 64 in all; `getent group` tells which there are"
            }
            Self::Principal => "a principal has at most 511 bytes",
        }
    }
}

/// What may stand outside of blocks: `a, b or c`.
fn outer_list(conjunction: &str) -> String {
    let words: Vec<&str> = outer_words().collect();
    match words.split_last() {
        Some((last, others)) => format!("{} {conjunction} {last}", others.join(", ")),
        None => String::new(),
    }
}

fn did_you_mean(nearest: &Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`? otherwise {otherwise}"),
        None => otherwise.to_owned(),
    }
}
