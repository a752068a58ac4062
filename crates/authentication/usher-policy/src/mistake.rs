//! Mistakes in a policy besides those of form, each with its text and its remedy.

use std::net::IpAddr;

use usher_base::{HostName, ServiceName, UserName};
use usher_language::{Found, Name, Place, did_you_mean, mistakes, shown};
use usher_protection::IkeAlgorithm;

use crate::destinations::MAXIMUM_DESTINATION_TABLE;
use crate::limits::MAXIMUM_ARGUMENT_BYTES;
use crate::names::GroupName;

mistakes! {
    /// The mistakes. Of their fields `found` is the text at fault, `nearest` what was most likely
    /// meant, `first` and `control` the earlier text that this one contradicts.
    pub enum PolicyMistake {
        // Hosts.
        /// Not an IP address.
        InvalidAddress { found: Found }
            => "`{found}` is not an IP address";
            "write an address such as 192.0.2.7 or 2001:db8::7; names are not looked up";
        /// An address at which other hosts cannot reach a host.
        UnusableAddress { address: IpAddr, fault: &'static str }
            => "{address} {fault}"; "write the unicast address at which the other hosts reach it";
        /// ::ffff:0:0/96.
        MappedAddress { address: IpAddr }
            => "{address} is an IPv4 address written as IPv6"; "write {}", address.to_canonical();
        /// A `loopback` address outside 127.0.0.0/8, or 127.0.0.1 and the like.
        InvalidLoopback { found: Found }
            => "`{found}` cannot be a loopback address for a host";
            "write an address of 127.0.0.0/8 that nothing else uses, such as 127.0.2.1; not \
             127.0.0.1, 127.0.0.0 or 127.255.255.255";
        /// Not one run of at least five bits.
        InvalidMarks { found: Found }
            => "`{found}` is not a mask of marks";
            "write one run of at least five bits in hexadecimal: `marks 0xfff00000;` is the default";
        /// Not an OpenSSH Ed25519 public key.
        InvalidHostKey
            => "this is not an Ed25519 public key of OpenSSH";
            "write the host's public key in quotes, as `ssh-ed25519 AAAA...`: the line of its .pub file";
        /// Not an OpenSSH public key, or one whose bytes are no key of its algorithm.
        InvalidIkeKey
            => "this is not an Ed25519 or ECDSA P-256 public key of OpenSSH";
            "write the host's public IKE key in quotes, as `ssh-ed25519 AAAA...` or, for hosts whose IKE \
             daemon has no Ed25519, `ecdsa-sha2-nistp256 AAAA...`: the line of its .pub file";
        /// A key by which no IKE daemon is authenticated.
        OtherIkeKey { algorithm: String }
            => "an `ike-key` is Ed25519 or ECDSA P-256, and this key is {algorithm}";
            "make an ECDSA P-256 key on the host if its IKE daemon has no Ed25519, and write it as \
             `ecdsa-sha2-nistp256 AAAA...`";
        /// More keys of one algorithm than a host that replaces its key has.
        TooManyIkeKeys { algorithm: IkeAlgorithm }
            => "this is the third {algorithm} key of this host";
            "remove those that it no longer has: of each algorithm a host has its key, and the one that takes \
             its place";
        /// An address of two hosts, or twice of one.
        DuplicateAddress { address: IpAddr, first: Place }
            => "{address} is already a host's address at {first}";
            "an address belongs to one host and stands once; correct one of the two";
        /// Two hosts with one key.
        DuplicateKey { first: Place }
            => "this is already a host's key at {first}";
            "every host has a key of its own, and another one for IKE; correct one of the two, and \
             if both machines really hold this key, make a new one on one of them";
        /// A host that is not defined.
        UnknownHost { found: HostName, nearest: Option<String> }
            => "no `host` block is called `{found}`";
            "{}", did_you_mean(nearest, format_args!("add a block `host {found} {{ ... }}`"));

        // Users.
        /// Not a [`crate::Moment`].
        InvalidTime { found: Found }
            => "`{found}` is not a time in UTC";
            "write date and time as 2026-12-31T18:00Z, in UTC, with seconds or without";
        /// A group that the caller could not look up.
        UnresolvedGroup { name: GroupName, reason: String }
            => "the members of the group `{name}` are not known: {}", shown(300, reason);
            "see to it that `getent group {name}` finds it and ask again; in a copy of /etc/usher \
             the file `groups` has the lines that it prints on that host";
        /// A member in a form that directories have: `USER@DOMAIN`, `DOMAIN\USER`, or with capitals.
        NameOfDirectory { found: Found, short: UserName }
            => "`{found}` is a directory's name, and a user has the short one of an account: `{short}`";
            "write `{short}`, and have the name service know the account by it, so that `getent passwd \
             {short}` finds it and prints the same name: use_fully_qualified_names = False and \
             case_sensitive = False (sssd.conf), or winbind use default domain = yes (smb.conf); a group \
             of the directory may be named as it is";
        /// root among the members.
        RootAsMember
            => "root cannot be a user of a service";
            "name an ordinary account; no service is ever run as root for a remote user";
        /// An account of one of Usher's daemons as a member or as the account of a service.
        UshersAccount { account: UserName }
            => "`{account}` is an account of Usher's own";
            "name another account: those whose names begin with `usher-` hold the keys and sockets \
             of Usher's daemons";
        /// A `users` block with principals in a `client` block.
        PrincipalsOfClient { found: Name }
            => "`users {found}` has a `principal` and cannot be named by a `client` block";
            "name a set without `principal`: certificates are judged by the host of the service, \
             and a client's host knows its users by their accounts";
        /// A `users` block that is not defined.
        UnknownUsers { found: Name, nearest: Option<String> }
            => "no `users` block is called `{found}`";
            "{}", did_you_mean(nearest, format_args!("add `users {found} {{ member USER, ...; }}`"));

        // Services.
        /// root as the account of a service.
        RootAsAccount
            => "root cannot be the account of a service";
            "name an ordinary account of the service's own; a service needs two capabilities to \
             become its users, not root";
        /// The account of a service is among its users, by the `users` block `block_name`.
        AccountIsUser { account: UserName, block_name: Name }
            => "`{account}` is a user of this service by `users {block_name}` and cannot be its account";
            "name an account that is in none of the service's `users` blocks, or take it out of them";
        /// `style shared` without an account as which the program runs.
        SharedWithoutAccount
            => "`style shared` needs an `account`: one process serves all users, and runs as none of them";
            "add `account NAME;` with an account that is for this service only";
        /// `style shared` without a program.
        SharedWithoutProgram
            => "`style shared` needs a `program`, which the keeper starts as the account, or `identify`";
            "add `program \"/PATH\";` with a program that accepts connections from its descriptor 3 \
             (LISTEN_FDS), or `identify http \"/PATH\";` (or `proxy-protocol`, `xclient`) with the socket of \
             a server that the account runs";
        /// `identify` beside `program`.
        IdentifyWithProgram { first: Place }
            => "`identify` stands beside `program` at {first}: connections go to the one or the other";
            "remove one of them; a program that the keeper starts asks usher_connection_info(3)";
        /// A path that no local socket can have.
        InvalidSocket { found: Found }
            => "`{found}` is no absolute path of a socket (at most 107 bytes, without `.`, `..` and empty parts)";
            "write the path at which the server listens, such as \"/run/app/usher.sock\"";
        /// `header` beside another way than `http` and `http2`.
        HeaderWithoutHttp
            => "only `identify http` and `identify http2` tell the user's name in a header";
            "remove `header`, or write `http` if the server at this socket speaks HTTP";
        /// A header that cannot have the user's name.
        InvalidHeader { found: Found }
            => "`{found}` is no header for a user's name: at most 64 letters, digits and hyphens, a letter first, \
                and no header with a meaning of its own in HTTP";
            "name the header that the server reads, such as X-Remote-User";
        /// `pam session` beside `account`.
        PamSessionForAccount
            => "`pam session` stands beside `account`: a process that is started as the service's own \
                account is never inside a PAM session of its user";
            "remove `pam session`, or have the keeper start the service by `program` alone, as its \
             users; the account phase is asked in any case, and a unit of the service can set limits \
             for all of its processes (LimitNOFILE= and the like)";
        /// `setuid permit` beside `files`.
        SetuidWithFiles { first: Place }
            => "`setuid permit` stands beside `files` at {first}: no process can be confined to \
                files and gain another user's rights";
            "keep one of the two: the kernel confines a process only when nothing that it executes \
             gains rights (no_new_privs)";
        /// Not an absolute path of a file.
        InvalidProgram { found: Found }
            => "`{found}` is not a plain absolute path";
            "write the path from `/` on, without `.`, `..`, `//` or a `/` at the end";
        /// Longer than [`MAXIMUM_ARGUMENT_BYTES`].
        ArgumentsTooLong { statement: String }
            => "`{statement}` has more than {MAXIMUM_ARGUMENT_BYTES} bytes";
            "move some of it into a file that it reads";
        /// An `environment` entry without `=`.
        NoEqualSign { found: Found }
            => "`{found}` has no `=`"; "write \"NAME=VALUE\"; NAME is of A-Z, 0-9 and `_`";
        /// The name of a variable is not `[A-Z_][A-Z0-9_]*`.
        InvalidVariable { found: Found }
            => "`{found}` has a name that is not of capital letters, digits and `_`, or begins with \
                a digit";
            "write \"NAME=VALUE\"; NAME is of A-Z, 0-9 and `_`";
        /// A variable that the worker's start sets.
        ReservedVariable { found: Found }
            => "`{found}` sets what Usher itself sets for each worker";
            "remove it; HOME, USER, LOGNAME, SHELL, PATH, LISTEN_* and USHER_* are set for each user";
        /// A variable that stands twice.
        RepeatedVariable { found: Found }
            => "`{found}` sets a name a second time"; "keep one of the two";
        /// Neither an absolute path nor one in the user's home.
        InvalidFilePath { found: Found }
            => "`{found}` is neither a plain absolute path nor one below `~`";
            "write the path from `/` on, or `~` for the user's home and `~/...` for what is in it, \
             without `.`, `..`, `//` or a `/` at the end";
        /// A path of `files` without what may be done there.
        MissingFileAccess { found: Found }
            => "`{found}` lacks what may be done there"; "write `read` or `write` after the path";
        /// Two services on one port.
        DuplicateListen { port: u16, first: Place }
            => "port {port} is already a service's at {first}";
            "give one of the services another port";
        /// A service on a control channel's port.
        ListenOnControl { port: u16, control: Place }
            => "port {port} is the control channel's at {control}";
            "give the service another port, or the control channel";
        /// A service on the port of the control channel of a host that does not say `control`.
        ListenOnDefaultControl { port: u16, host: HostName }
            => "port {port} is the control channel's of host `{host}`";
            "give the service another port, or the control channel";
        /// Two service names with one [`crate::service_id`].
        ServiceNumberCollision { name: ServiceName, other: ServiceName }
            => "the names `{name}` and `{other}` come to the same service number";
            "rename one of the services";
        /// More than [`MAXIMUM_DESTINATION_TABLE`].
        DestinationsTooFine { found: usize }
            => "`connect` takes {found} entries of the kernel's table, more than \
                {MAXIMUM_DESTINATION_TABLE}";
            "name networks (`a/n`) in place of ranges that begin or end between two";
        /// 0.0.0.0, or the IPv6 address of zeros, in `connect`.
        UnspecifiedDestination { address: IpAddr }
            => "{address} is no machine's address";
            "write {address}/0 for all addresses, or {} for this host",
            if address.is_ipv4() { "127.0.0.1" } else { "::1" };
        /// Neither a port nor a range of ports.
        InvalidPorts { found: Found }
            => "`{found}` is neither a port nor a range of ports";
            "write a number from 1 to 65535, or two with `-`";
        /// A range whose first port is after its last.
        PortsBackwards { found: Found }
            => "`{found}` goes backwards"; "write the lower port first";

        // Clients.
        /// A service of a host twice in the `client` blocks.
        DuplicateClientService { service: ServiceName, host: HostName, first: Place }
            => "`{service}` at `{host}` is already a client's service at {first}";
            "keep one, in a block that names all its users";
        /// Two services of one host on one port in the `client` blocks.
        DuplicateClientPort { port: u16, host: HostName, first: Place }
            => "port {port} at `{host}` is already another service's at {first}";
            "a port of a host has one service; correct one of the two";

        // Files.
        /// Not the path of a file.
        InvalidInclude { found: Found }
            => "`{found}` cannot be the path of a file";
            "name one file: its path from `/` on, or from the folder of this file on";
        /// A file that the caller could not read.
        UnreadableInclude { found: String, reason: String }
            => "{} cannot be included: {}", shown(300, found), shown(300, reason);
            "correct the path, which goes from the folder of this file on unless it begins with `/`, \
             put the file there, or remove the statement";
    }
}
