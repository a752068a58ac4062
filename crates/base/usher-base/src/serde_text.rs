//! Serde as text: a type that has a text form is a string in JSON.

/// Implements `Serialize` by `Display`, or by a function that returns another text, and `Deserialize`
/// by `FromStr`.
#[macro_export]
macro_rules! serde_as_text {
    ($name:ty) => {
        $crate::serde_text::serde_as_text!($name, std::convert::identity);
    };
    ($name:ty, $text:expr) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&($text)(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}

pub use serde_as_text;
