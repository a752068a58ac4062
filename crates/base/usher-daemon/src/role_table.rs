//! The table of a system's roles.

/// Declares the roles of a system, a type and a line of the table `ROLES` each: the requests that it
/// answers on its control socket, and the fields of its [`Role`](crate::role::Role).
#[macro_export]
macro_rules! roles {
    ($($(#[$doc:meta])* $type:ident answers [$($request:ident),*] {
        $($field:ident: $value:expr,)*
        ..$defaults:ident
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub struct $type;

            impl $crate::role::HasRole for $type {
                const ROLE: &'static $crate::role::Role = &$crate::role::Role {
                    $($field: $value,)*
                    answers: &[$(<$request as $crate::control::Request>::NAME),*],
                    ..$defaults
                };
            }

            $(impl $crate::control::AnsweredBy<$type> for $request {})*

            impl<D> $crate::control_server::Serves<D> for $type
            where
                D: Send + Sync + 'static $(+ $crate::control_server::Answers<$request>)*,
            {
                async fn serve(
                    _daemon: &D,
                    asked: $crate::control_server::ArrivedRequest<'_>,
                ) -> std::io::Result<()> {
                    $(if asked.is::<$request>() {
                        return asked.answer::<$request>(_daemon).await;
                    })*
                    asked.refuse(<Self as $crate::role::HasRole>::ROLE).await
                }
            }
        )*

        /// All roles of the table, in its order.
        pub const ROLES: &[&$crate::role::Role] =
            &[$(<$type as $crate::role::HasRole>::ROLE),*];
    };
}
