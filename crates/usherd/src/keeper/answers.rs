//! The keeper's answers to control requests.

use usher_daemon::control::{Status, StatusView};
use usher_daemon::control_server::{Answers, Failed};
use usher_local::requests::{
    Disable, Enable, Recent, RecentView, Reload, ReloadedView, Troubles, TroublesView, Who,
    WhoView, WouldEnd, WouldEndView,
};

use super::Keeper;

impl Answers<Reload> for Keeper {
    async fn answer(&self, _: Reload) -> Result<ReloadedView, Failed> {
        let ended = self.reload()?;
        // The configuration is in force. The rest must not delay a revocation; an account that is not
        // fenced yet is fenced when one of its processes first asks.
        self.host.look_accounts_up_in_time().await;
        Ok(self.settled(ended).await)
    }
}

impl Answers<Disable> for Keeper {
    async fn answer(&self, Disable { user }: Disable) -> Result<ReloadedView, Failed> {
        let fresh = self.host.configuration.disable(user);
        Ok(self.settled(self.put_in_force(fresh)?).await)
    }
}

impl Answers<Enable> for Keeper {
    async fn answer(&self, Enable { user }: Enable) -> Result<ReloadedView, Failed> {
        let fresh = self.host.configuration.enable(&user);
        Ok(self.settled(self.put_in_force(fresh)?).await)
    }
}

impl Answers<Who> for Keeper {
    async fn answer(&self, _: Who) -> Result<WhoView, Failed> {
        Ok(self.who()?)
    }
}

impl Answers<Recent> for Keeper {
    async fn answer(&self, _: Recent) -> Result<RecentView, Failed> {
        let checked = &self.host.configuration.get().checked;
        Ok(self.sessions.table.recent.view(checked))
    }
}

impl Answers<Troubles> for Keeper {
    async fn answer(&self, _: Troubles) -> Result<TroublesView, Failed> {
        let troubles = self
            .queues
            .common
            .troubles
            .view(&self.host.configuration.get().checked);
        Ok(TroublesView { troubles })
    }
}

impl Answers<Status> for Keeper {
    async fn answer(&self, _: Status) -> Result<StatusView, Failed> {
        Ok(self.status()?)
    }
}

impl Answers<WouldEnd> for Keeper {
    async fn answer(&self, request: WouldEnd) -> Result<WouldEndView, Failed> {
        let ended = self.would_end(request.into_candidate()).await?;
        Ok(WouldEndView { ended })
    }
}
