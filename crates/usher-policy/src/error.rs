//! What can be wrong with a policy: each mistake a type, with its reason and its remedy.

use std::net::IpAddr;
use std::time::Duration;

use usher_proto::{HostName, ServiceName, UserName};

use crate::destinations::{MAXIMUM_DESTINATION_TABLE, MAXIMUM_DESTINATIONS};
use crate::keywords::BlockKind;
use crate::model::{
    MAXIMUM_ARGUMENT_BYTES, MAXIMUM_FILE_RULES, MAXIMUM_HOST_ADDRESSES, MAXIMUM_PROGRAMS, Style,
};
use crate::name::{GroupName, Name};
use crate::ranges::AddressRange;
use crate::report::MAXIMUM_ERRORS;
use crate::shown::{shown, shown_up_to};
use crate::source::{MAXIMUM_SOURCE_BYTES, Origin, Place, Span};
use crate::syntax::MAXIMUM_STATEMENTS;

/// One mistake and where it is. Displays as `file:line:column: reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {kind}")]
pub struct PolicyError {
    /// The [`crate::Source::name`].
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The text at fault, in bytes of its source.
    pub span: Span,
    /// The reason.
    pub kind: PolicyErrorKind,
}

impl PolicyError {
    /// A mistake of a statement that was read without one.
    pub(crate) fn at(origin: &Origin, kind: PolicyErrorKind) -> Self {
        let Place { file, line, column } = origin.place.clone();
        Self {
            file,
            line,
            column,
            span: origin.span,
            kind,
        }
    }

    /// What to do about it: one sentence for the administrator.
    pub fn remedy(&self) -> String {
        self.kind.remedy()
    }
}

impl PolicyErrorKind {
    /// Whether it is about a name that another source may define.
    pub(crate) fn is_of_unknown_name(&self) -> bool {
        matches!(self, Self::UnknownUsers { .. } | Self::UnknownHost { .. })
    }
}

/// The names that users, services, hosts and blocks may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A user: the name of a local account.
    User,
    /// The local account of a service.
    Account,
    /// A service.
    Service,
    /// A host.
    Host,
    /// A `users` or `client` block.
    Block,
    /// What keys are for.
    Key,
    /// A group of accounts.
    Group,
    /// A principal of certificates.
    Principal,
}

impl NameKind {
    fn noun(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Account => "local account",
            Self::Service => "service",
            Self::Host => "host",
            Self::Block => "block",
            Self::Key => "key",
            Self::Group => "group",
            Self::Principal => "principal",
        }
    }
}

/// Why an address cannot be a host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// 0.0.0.0, or the IPv6 address of zeros.
    #[error("is no machine's address")]
    Unspecified,
    /// A group of machines, or all of them.
    #[error("is not the address of one machine")]
    NotUnicast,
    /// ::ffff:0:0/96.
    #[error("is an IPv4 address written as IPv6")]
    MappedIpv4,
    /// fe80::/10, RFC 4291 section 2.5.6.
    #[error("is link-local and means nothing without an interface")]
    LinkLocal,
    /// 240.0.0.0/4, RFC 1112: the keeper's own listeners are bound there.
    #[error("is in the reserved 240.0.0.0/4, which Usher's listeners use")]
    Reserved,
}

/// Why an `environment` entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentFault {
    /// No `=`.
    #[error("has no `=`")]
    NoEqualSign,
    /// The name is not `[A-Z_][A-Z0-9_]*`.
    #[error("has a name that is not of capital letters, digits and `_`, or begins with a digit")]
    InvalidName,
    /// The worker's start sets it.
    #[error("sets what Usher itself sets for each worker")]
    Reserved,
    /// The name stands twice.
    #[error("sets a name a second time")]
    Repeated,
}

/// The reasons. Each displays as an explanation; [`PolicyErrorKind::remedy`] says what to do.
///
/// The fields mean the same in every variant:
/// - `found`, `name`: the text at fault, as it was written. Displayed shortened and escaped.
/// - `nearest`: what was most likely meant, if anything is near.
/// - `block`, `statement`: the kind of block, and the keyword of the statement, at fault.
/// - `form`: how the statement is written.
/// - `first`, `opened`, `control`: the earlier text that this one contradicts.
/// - all others: the value that the variant is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each field's meaning stands once, above")]
pub enum PolicyErrorKind {
    // The text.
    /// The source is longer than [`MAXIMUM_SOURCE_BYTES`]; nothing of it was read.
    #[error("the file has {length} bytes, more than {MAXIMUM_SOURCE_BYTES}")]
    SourceTooLong { length: usize },
    /// A byte that is not of UTF-8; nothing of the source was read.
    #[error("the byte 0x{byte:02x} does not belong in UTF-8 here")]
    NotUtf8 { byte: u8 },
    /// More statements than [`MAXIMUM_STATEMENTS`]; nothing after this one was read.
    #[error("this is more than {MAXIMUM_STATEMENTS} statements")]
    TooManyStatements,
    /// More mistakes than [`MAXIMUM_ERRORS`].
    #[error("there are more than {MAXIMUM_ERRORS} mistakes; the rest is not shown")]
    TooManyErrors,
    /// A control character, a direction mark, a blank that is none, or one without width.
    #[error("the invisible character U+{:04X} does not belong in a policy", u32::from(*character))]
    ForbiddenCharacter { character: char },
    /// A string without its closing quote on the same line.
    #[error("the string does not end on its line")]
    UnterminatedString,
    /// A backslash before something that has no such meaning.
    #[error("`\\{}` means nothing in a string", shown(&character.to_string()))]
    UnknownEscape { character: char },

    // The form.
    /// Something else where a block should begin.
    #[error("a block is expected here")]
    ExpectedBlock,
    /// A block of a kind that does not exist.
    #[error("there is no block `{}`", shown(found))]
    UnknownBlock {
        found: String,
        nearest: Option<String>,
    },
    /// A statement that stands outside of any block.
    #[error("`{found}` stands outside a block")]
    StatementOutsideBlock { found: String, block: BlockKind },
    /// No `{` after a block's name.
    #[error("a `{{` is missing after the head of the `{block}` block")]
    MissingOpen { block: BlockKind },
    /// A block without a name.
    #[error("the `{block}` block has no name")]
    MissingBlockName { block: BlockKind },
    /// A block with more than one name.
    #[error("`{}` is too much after the name of the `{block}` block", shown(found))]
    SecondBlockName { block: BlockKind, found: String },
    /// The text ends inside a block.
    #[error("the `{block}` block is not closed before the end of the file")]
    UnclosedBlock { block: BlockKind },
    /// What stands elsewhere begins inside of a block.
    #[error(
        "`{}` begins here, but the `{block}` block of {opened} is not closed",
        shown(found)
    )]
    MissingClose {
        found: String,
        block: BlockKind,
        opened: Place,
    },
    /// A `{` in a statement that stands outside of blocks.
    #[error("`{statement}` is a statement and has no braces")]
    StatementWithBraces { statement: String },
    /// A block inside a block, where none can be.
    #[error("a block cannot stand inside a block")]
    NestedBlock,
    /// A `}` without a block.
    #[error("this `}}` closes nothing")]
    UnmatchedClose,
    /// A `{` that is never closed, in a block that was skipped.
    #[error("this `{{` is never closed")]
    UnmatchedOpen,
    /// Something else where a statement should begin.
    #[error("a statement is expected here")]
    ExpectedStatement,
    /// No `;` at the end of a statement.
    #[error("a `;` is missing at the end of the statement `{}`", shown(statement))]
    MissingSemicolon { statement: String },
    /// A comma at the beginning of a list, or two in a row.
    #[error("nothing stands before this comma")]
    NothingBeforeComma,
    /// A comma at the end of a list.
    #[error("nothing stands after this comma")]
    NothingAfterComma,

    // Statements.
    /// A statement that this kind of block does not have.
    #[error("{} block has no statement `{}`", block.one(), shown(found))]
    UnknownStatement {
        block: BlockKind,
        found: String,
        nearest: Option<String>,
    },
    /// A statement that this block must have.
    #[error("the `{block}` block does not say `{statement}`")]
    MissingStatement {
        block: BlockKind,
        statement: &'static str,
        form: &'static str,
    },
    /// A statement that may stand once, a second time.
    #[error("`{statement}` stands a second time in this block; the first is at {first}")]
    RepeatedStatement {
        statement: &'static str,
        first: Place,
    },
    /// The same of a statement that stands outside of blocks.
    #[error("`{statement}` stands a second time in this policy; the first is at {first}")]
    RepeatedOuterStatement {
        statement: &'static str,
        first: Place,
    },
    /// A statement without the value it needs.
    #[error("`{statement}` lacks a value")]
    MissingValue {
        statement: &'static str,
        form: &'static str,
    },
    /// A value too much, or of the wrong form.
    #[error("`{}` does not belong in `{statement}`", shown(found))]
    UnexpectedValue {
        statement: &'static str,
        form: &'static str,
        found: String,
    },
    /// A word where a string belongs.
    #[error("`{}` must be a string", shown(found))]
    ExpectedString { found: String },
    /// A string where a word belongs.
    #[error("{} must be a word, not a string", shown(found))]
    ExpectedWord { found: String },
    /// A statement that has no meaning for the service's style.
    #[error("`{statement}` has no meaning with `style {style}`")]
    NotForStyle {
        statement: &'static str,
        style: Style,
    },
    /// A service with neither `program` nor `account`.
    #[error("the `service` block says neither `program` nor `account`")]
    NotServed,
    /// `setuid permit` beside `files`.
    #[error(
        "`setuid permit` stands beside `files` at {first}: no process can be confined to files and \
         gain another user's rights"
    )]
    SetuidWithFiles { first: Place },
    /// Not a file mode creation mask.
    #[error("`{}` is not a file mode creation mask", shown(found))]
    InvalidUmask { found: String },
    /// A service with `program` and `account`; `statement` is the later one.
    #[error("`{statement}` stands beside `{other}` at {first}; a service has one of the two")]
    ServedTwice {
        statement: &'static str,
        other: &'static str,
        first: Place,
    },
    /// A statement that has no meaning for a service with `account`.
    #[error("`{statement}` has no meaning with `account`")]
    NotForAccount { statement: &'static str },
    /// `pam session` beside `account`.
    #[error(
        "`pam session` stands beside `account`: a process that the service manager has started is \
         never inside a PAM session of its user"
    )]
    PamSessionForAccount,

    // Values.
    /// Not a name.
    #[error("`{}` cannot be the name of a {}", shown(found), name.noun())]
    InvalidName { name: NameKind, found: String },
    /// Not an IP address.
    #[error("`{}` is not an IP address", shown(found))]
    InvalidAddress { found: String },
    /// An IP address that no host can have.
    #[error("{address} {fault}")]
    UnusableAddress {
        address: IpAddr,
        fault: AddressFault,
    },
    /// A `loopback` address outside 127.0.0.0/8, or 127.0.0.1 and the like.
    #[error("`{}` cannot be a loopback address for a host", shown(found))]
    InvalidLoopback { found: String },
    /// More than [`MAXIMUM_HOST_ADDRESSES`].
    #[error("the host has more than {MAXIMUM_HOST_ADDRESSES} addresses")]
    TooManyAddresses,
    /// Not an OpenSSH Ed25519 public key.
    #[error("this is not an Ed25519 public key of OpenSSH")]
    InvalidHostKey,
    /// Not a TCP port.
    #[error("`{}` is not a TCP port", shown(found))]
    InvalidPort { found: String },
    /// Not a number within its limits.
    #[error("`{}` is not a number from 1 to {maximum}", shown(found))]
    InvalidNumber { found: String, maximum: u32 },
    /// Not a size of memory between [`crate::MINIMUM_MEMORY`] and [`crate::MAXIMUM_MEMORY`].
    #[error("`{}` is not a size of memory", shown(found))]
    InvalidMemory { found: String },
    /// Not a percentage from 1 to [`crate::MAXIMUM_CPU`].
    #[error("`{}` is not a percentage of processor time", shown(found))]
    InvalidCpu { found: String },
    /// Not a duration.
    #[error("`{}` is not a duration", shown(found))]
    InvalidDuration { found: String },
    /// Not a [`crate::Moment`].
    #[error("`{}` is not a time in UTC", shown(found))]
    InvalidTime { found: String },
    /// A duration shorter than what the statement takes, or longer than
    /// [`crate::MAXIMUM_DURATION`].
    #[error("`{}` is not between {}s and seven days", shown(found), shortest.as_secs())]
    DurationOutOfRange { found: String, shortest: Duration },
    /// Neither an absolute path nor the name of a program.
    #[error(
        "`{}` is neither the name of a program nor a plain absolute path",
        shown(found)
    )]
    InvalidApplication { found: String },
    /// Neither addresses nor a host name.
    #[error(
        "`{}` is neither a range of addresses nor the name of a host",
        shown(found)
    )]
    InvalidNetwork { found: String },
    /// A range whose first address is after its last.
    #[error("`{}` goes backwards", shown(found))]
    RangeBackwards { found: String },
    /// An address with bits after its prefix.
    #[error(
        "`{}` is not the first address of its network, {network}",
        shown(found)
    )]
    NetworkHostBits {
        found: String,
        network: AddressRange,
    },
    /// An IPv4-mapped address in a range.
    #[error("`{}` has an IPv4 address written as IPv6", shown(found))]
    MappedNetwork { found: String },
    /// A word that is neither a port nor `any`.
    #[error("`{}` is neither a port nor `any`", shown(found))]
    InvalidItemPort { found: String },
    /// A host name that the caller could not look up.
    #[error("the address of `{name}` cannot be found: {}", shown(reason))]
    UnresolvedName { name: HostName, reason: String },
    /// A group that the caller could not look up.
    #[error(
        "who is in the group `{name}` is not known: {}",
        shown_up_to(300, reason)
    )]
    UnresolvedGroup { name: GroupName, reason: String },
    /// What cannot be the path of a file.
    #[error("`{}` cannot be the path of a file", shown(found))]
    InvalidInclude { found: String },
    /// A file that the caller could not read.
    #[error(
        "{} cannot be included: {}",
        shown_up_to(300, found),
        shown_up_to(300, reason)
    )]
    UnreadableInclude { found: String, reason: String },
    /// Not an absolute path of a file.
    #[error("`{}` is not a plain absolute path", shown(found))]
    InvalidProgram { found: String },
    /// Neither an absolute path nor one in the user's home.
    #[error(
        "`{}` is neither a plain absolute path nor one below `~`",
        shown(found)
    )]
    InvalidFilePath { found: String },
    /// A path of `files` without what may be done there.
    #[error("`{}` lacks what may be done there", shown(found))]
    MissingFileAccess { found: String },
    /// More than [`MAXIMUM_FILE_RULES`].
    #[error("`files` has {found} entries, more than {MAXIMUM_FILE_RULES}")]
    TooManyFileRules { found: usize },
    /// More than [`MAXIMUM_DESTINATIONS`].
    #[error("`connect` has {found} entries, more than {MAXIMUM_DESTINATIONS}")]
    TooManyDestinations { found: usize },
    /// More than [`MAXIMUM_DESTINATION_TABLE`].
    #[error(
        "`connect` takes {found} entries of the kernel's table, more than \
         {MAXIMUM_DESTINATION_TABLE}"
    )]
    DestinationsTooFine { found: usize },
    /// `none` beside peers.
    #[error("`none` is to connect nowhere: it stands alone")]
    NoneIsNotAlone,
    /// 0.0.0.0, or the IPv6 address of zeros.
    #[error("{address} is no machine's address")]
    UnspecifiedDestination { address: IpAddr },
    /// Neither a port nor a range of ports.
    #[error("`{}` is neither a port nor a range of ports", shown(found))]
    InvalidPorts { found: String },
    /// A range whose first port is after its last.
    #[error("`{}` goes backwards", shown(found))]
    PortsBackwards { found: String },
    /// More than [`MAXIMUM_PROGRAMS`].
    #[error("`programs` has {found} entries, more than {MAXIMUM_PROGRAMS}")]
    TooManyPrograms { found: usize },
    /// Longer than [`MAXIMUM_ARGUMENT_BYTES`].
    #[error("`{statement}` has more than {MAXIMUM_ARGUMENT_BYTES} bytes")]
    ArgumentsTooLong { statement: &'static str },
    /// An environment entry that is refused.
    #[error("`{}` {fault}", shown(found))]
    InvalidEnvironment {
        found: String,
        fault: EnvironmentFault,
    },
    /// None of the words that may stand here.
    #[error("`{}` is not one of {}", shown(found), choices.join(", "))]
    UnknownChoice {
        found: String,
        choices: &'static [&'static str],
    },
    /// `any` beside what it comprises.
    #[error("`any` in `{statement}` is all that there are: it stands alone")]
    AnyIsNotAlone {
        statement: &'static str,
        form: &'static str,
    },
    /// root among the members.
    #[error("root cannot be a user of a service")]
    RootAsMember,
    /// root as the account of a service.
    #[error("root cannot be the account of a service")]
    RootAsAccount,
    /// An account of one of Usher's daemons as a member or as the account of a service.
    #[error("`{account}` is an account of Usher's own")]
    UshersAccount { account: UserName },
    /// The account of a service is among its users, by the `users` block `block_name`.
    #[error(
        "`{account}` is a user of this service by `users {block_name}` and cannot be its account"
    )]
    AccountIsUser { account: UserName, block_name: Name },

    /// A `users` block with principals in a `client` block.
    #[error("`users {found}` has a `principal` and cannot be named by a `client` block")]
    PrincipalsOfClient { found: Name },

    // Names and uniqueness.
    /// A `users` block that is not defined.
    #[error("no `users` block is called `{found}`")]
    UnknownUsers {
        found: Name,
        nearest: Option<String>,
    },
    /// A host that is not defined.
    #[error("no `host` block is called `{found}`")]
    UnknownHost {
        found: HostName,
        nearest: Option<String>,
    },
    /// A protection that the `application` block does not define.
    #[error("no `protection` block of this application is called `{found}`")]
    UnknownProtection {
        found: Name,
        nearest: Option<String>,
    },
    /// A program in two `application` blocks, or twice in one.
    #[error("`{}` already has a policy at {first}", shown(found))]
    DuplicateApplication { found: String, first: Place },
    /// A second block of the same kind and name.
    #[error("the `{block}` block `{}` is already defined at {first}", shown(name))]
    DuplicateBlock {
        block: BlockKind,
        name: String,
        first: Place,
    },
    /// The same word twice in one list.
    #[error("`{}` is already listed at {first}", shown(found))]
    ListedTwice { found: String, first: Place },
    /// An address of two hosts, or twice of one.
    #[error("{address} is already a host's address at {first}")]
    DuplicateAddress { address: IpAddr, first: Place },
    /// Two hosts with one key.
    #[error("this is already a host's key at {first}")]
    DuplicateKey { first: Place },
    /// Two services on one port.
    #[error("port {port} is already a service's at {first}")]
    DuplicateListen { port: u16, first: Place },
    /// A service on a control channel's port.
    #[error("port {port} is the control channel's at {control}")]
    ListenOnControl { port: u16, control: Place },
    /// A service on the port of the control channel of a host that does not say `control`.
    #[error("port {port} is the control channel's of host `{host}`")]
    ListenOnDefaultControl { port: u16, host: HostName },
    /// Two service names with one [`crate::service_id`].
    #[error("the names `{name}` and `{other}` come to the same service number")]
    ServiceNumberCollision {
        name: ServiceName,
        other: ServiceName,
    },
    /// A service of a host twice in the `client` blocks.
    #[error("`{service}` at `{host}` is already a client's service at {first}")]
    DuplicateClientService {
        service: ServiceName,
        host: HostName,
        first: Place,
    },
    /// Two services of one host on one port in the `client` blocks.
    #[error("port {port} at `{host}` is already another service's at {first}")]
    DuplicateClientPort {
        port: u16,
        host: HostName,
        first: Place,
    },
}
