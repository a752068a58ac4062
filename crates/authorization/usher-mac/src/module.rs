//! Policy modules: those that can be loaded, and those that are.

use std::borrow::Cow;
use std::os::fd::{AsRawFd, OwnedFd};

use usher_bpf::zerocopy::IntoBytes;
use usher_bpf::{KernelError, Opened, Table, frozen_bytes};
use usher_mac_blocks::bsdextended::AccessRule;
use usher_mac_blocks::ifoff::IfOff;
use usher_mac_blocks::portacl::PortAcl;
use usher_mac_blocks::seeotheruids::SeeOtherUids;
use usher_mac_blocks::te::TypeEnforcement;

use crate::answers::{self, Answers};
use crate::bsdextended;
use crate::declaration::{Declaration, NotAModule};
use crate::ifoff;
use crate::portacl;
use crate::seeotheruids;
use crate::shared::{MAC_MODULES, MacTe};
use crate::statements::{DeclaredSettings, Statement};
use crate::te;
use crate::ubns::{self, ServiceSettings};
use crate::{EntryPoint, Error, Names};

/// Limit of modules that are loaded at the same time.
pub const MAX_MODULES: usize = 8;

const _: () = assert!(MAX_MODULES == MAC_MODULES as usize);

/// A module that this program brings.
struct BuiltIn {
    name: &'static str,
    /// Its object file.
    object: &'static [u8],
    /// The settings with which it comes into force if it gets no others; none for a module without.
    settings: fn() -> Option<Settings>,
}

macro_rules! built_in {
    ($($name:literal => $settings:expr,)*) => {
        /// The modules that this program brings.
        pub const NAMES: [&str; [$($name),*].len()] = [$($name),*];

        static BUILT_IN: [BuiltIn; NAMES.len()] = [$(BuiltIn {
            name: $name,
            object: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),
            settings: || $settings,
        }),*];
    };
}

built_in! {
    "none" => None,
    "test" => Some(Settings::Test(Answers { uid: u32::MAX, errors: Vec::new() })),
    "bsdextended" => Some(Settings::Bsdextended(Vec::new(), Names::default())),
    "ubns" => Some(Settings::Ubns(Vec::new())),
    "biba" => None,
    "mls" => None,
    "lomac" => None,
    "portacl" => Some(Settings::Portacl(PortAcl::default(), Names::default())),
    "seeotheruids" => Some(Settings::Seeotheruids(SeeOtherUids::default(), Names::default())),
    "partition" => None,
    "ifoff" => Some(Settings::Ifoff(IfOff::default(), Names::default())),
    "te" => Some(Settings::Te(TypeEnforcement::default())),
}

/// Settings of a module: each kind belongs to one module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settings {
    /// Of `bsdextended`, in the order in which they are asked.
    Bsdextended(Vec<AccessRule>, Names),
    /// Of `test`.
    Test(Answers),
    /// Of `ubns`: the services of the policy.
    Ubns(Vec<ServiceSettings>),
    /// Of `portacl`.
    Portacl(PortAcl, Names),
    /// Of `seeotheruids`.
    Seeotheruids(SeeOtherUids, Names),
    /// Of `ifoff`.
    Ifoff(IfOff, Names),
    /// Of `te`.
    Te(TypeEnforcement),
    /// Of a module from a file.
    Declared(DeclaredSettings),
}

impl Settings {
    /// The name of the module that these settings are for.
    #[must_use]
    pub fn module(&self) -> &str {
        match self {
            Self::Bsdextended(..) => "bsdextended",
            Self::Test(_) => "test",
            Self::Ubns(_) => "ubns",
            Self::Portacl(..) => "portacl",
            Self::Seeotheruids(..) => "seeotheruids",
            Self::Ifoff(..) => "ifoff",
            Self::Te(_) => "te",
            Self::Declared(settings) => settings.module(),
        }
    }

    /// The bytes that the module reads.
    ///
    /// # Errors
    /// A mistake in the settings.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::Bsdextended(rules, names) => {
                bsdextended::encode(rules, names)?.as_bytes().to_vec()
            }
            Self::Test(answers) => answers::encode(answers).as_bytes().to_vec(),
            Self::Ubns(services) => ubns::encode(services)?.as_bytes().to_vec(),
            Self::Portacl(ports, names) => portacl::encode(ports, names)?.as_bytes().to_vec(),
            Self::Seeotheruids(exempt, names) => {
                seeotheruids::encode(exempt, names)?.as_bytes().to_vec()
            }
            Self::Ifoff(silence, names) => ifoff::encode(silence, names)?.as_bytes().to_vec(),
            Self::Te(types) => te::encode(types)?.as_bytes().to_vec(),
            Self::Declared(settings) => settings.bytes().to_vec(),
        })
    }

    /// A table that holds the settings, and that user space cannot change.
    pub(crate) fn table(&self) -> Result<SettingsTable, Error> {
        let Self::Te(types) = self else {
            return Ok(SettingsTable {
                descriptor: frozen_bytes(TABLE, &self.encode()?)?,
                notes: None,
            });
        };
        let table = Table::of_one(TABLE)?;
        table.set(&0, &*te::encode(types)?)?;
        Ok(SettingsTable {
            notes: Some(table.try_clone()?),
            descriptor: table.freeze()?,
        })
    }
}

/// The name of tables of settings.
const TABLE: &str = "mac_settings";

/// A table of settings.
pub(crate) struct SettingsTable {
    pub(crate) descriptor: OwnedFd,
    /// The table of `te`, in which the module notes what it refuses.
    pub(crate) notes: Option<Table<u32, MacTe>>,
}

/// Puts a table of settings in the place of the former one.
pub(crate) fn exchange(place: &Table<u32, u32>, settings: &OwnedFd) -> Result<(), KernelError> {
    place.set(&0, &settings.as_raw_fd().unsigned_abs())
}

/// A module that can be loaded, with the settings with which it comes into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub(crate) name: Cow<'static, str>,
    /// Its object file.
    code: Cow<'static, [u8]>,
    pub(crate) settings: Option<Settings>,
    statements: Vec<Statement>,
}

impl Module {
    /// The built-in module of this name, with its default settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let built_in = BUILT_IN.iter().find(|module| module.name == name)?;
        Some(Self::built_in(built_in, (built_in.settings)()))
    }

    /// The module in an object file, with its default settings.
    ///
    /// # Errors
    /// The reason that these bytes are no module for this version.
    pub fn from_object(bytes: Vec<u8>) -> Result<Self, NotAModule> {
        let declared = Declaration::read(&bytes)?;
        let settings = match (declared.has_settings, declared.statements.as_slice()) {
            (true, []) => return Err(NotAModule::NoStatement),
            (false, [_, ..]) => return Err(NotAModule::NoSettings),
            (false, []) => None,
            (true, statements) => {
                let size = declared.settings_size;
                let settings = DeclaredSettings::new(&declared.name, statements, size);
                Some(Settings::Declared(settings))
            }
        };
        Ok(Self {
            name: declared.name.into(),
            code: bytes.into(),
            settings,
            statements: declared.statements,
        })
    }

    /// The module with other settings.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// The module that declares every entry point and refuses nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::built_in(&BUILT_IN[0], None)
    }

    /// The module `bsdextended` with these rules, which name nothing.
    #[must_use]
    pub fn bsdextended(rules: Vec<AccessRule>) -> Self {
        Self::with(Settings::Bsdextended(rules, Names::default()))
    }

    /// The built-in module to which these settings belong.
    #[must_use]
    pub fn with(settings: Settings) -> Self {
        let name = settings.module();
        let built_in = BUILT_IN.iter().find(|module| module.name == name);
        Self::built_in(built_in.unwrap_or(&BUILT_IN[0]), Some(settings))
    }

    fn built_in(module: &BuiltIn, settings: Option<Settings>) -> Self {
        Self {
            name: module.name.into(),
            code: module.object.into(),
            settings,
            statements: Vec::new(),
        }
    }

    /// The settings with which the module comes into force, if it has settings.
    #[must_use]
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// The statements by which the policy sets the settings. A built-in module has none here: its statements
    /// belong to the language.
    #[must_use]
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// The module's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the module is built into this program; otherwise it is from an object file.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        matches!(self.code, Cow::Borrowed(_))
    }

    /// The module's object file.
    #[must_use]
    pub fn object(&self) -> &[u8] {
        &self.code
    }

    /// The declaration in the module's object file.
    ///
    /// # Errors
    /// The reason that the file is no module for this version.
    pub fn declaration(&self) -> Result<Declaration, Error> {
        Declaration::read(&self.code).map_err(|reason| Error::NotAModule {
            name: self.name.clone().into_owned(),
            reason,
        })
    }

    /// Opens the module's programs.
    pub(crate) fn open(&self) -> Result<Opened, KernelError> {
        Opened::read(&format!("mac_{}", self.name), &self.code)
    }
}

/// A module in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// Its slot, from 0, below [`MAX_MODULES`].
    pub slot: usize,
    /// Its place in the order of loading, from 0. All modules are always asked, so the order decides
    /// nothing.
    pub order: usize,
    /// The entry points that it declares.
    pub entry_points: Vec<EntryPoint>,
    /// Refusals since it was loaded, of the entry points that have refused.
    pub refusals: Vec<(EntryPoint, u64)>,
    /// How often it has lowered a process since it was loaded.
    pub lowered: u64,
}
