package registrar

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/registrar/internal/drivername"
	"github.com/longshore-csi/longshore/registrar/internal/regserver"
	"github.com/longshore-csi/longshore/registrar/internal/regsocket"
	"github.com/longshore-csi/longshore/registrar/internal/state"
)

// keeper keeps one registration socket in place, and makes it anew when the
// kubelet has refused it or somebody has removed it.
type keeper struct {
	o       Options
	machine *state.Machine
	delay   time.Duration

	driver drivername.Identity
	socket *regsocket.Socket
	server *regserver.Server
}

func newKeeper(o Options, machine *state.Machine) *keeper {
	return &keeper{o: o, machine: machine, delay: o.Retry.Start}
}

// run serves the driver that told tells about, until ctx ends.
func (k *keeper) run(ctx context.Context, told <-chan drivername.Identity) {
	defer k.withdraw(ctx)
	if err := regsocket.Clean(ctx, k.o.PluginRegistrationPath); err != nil {
		klog.FromContext(ctx).V(2).Info("Looking for leftovers of an earlier process", logging.KeyReason, err.Error())
	}
	check := time.NewTicker(k.o.CheckInterval)
	defer check.Stop()
	// retry is nil unless a new attempt is due; a nil channel never fires.
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case who := <-told:
			if k.meet(ctx, who) {
				retry = k.again(ctx)
			}
		case verdict := <-k.verdicts():
			retry = k.judge(ctx, verdict)
		case <-retry:
			retry = k.again(ctx)
		case <-check.C:
			if retry == nil && k.look(ctx) == regsocket.Gone {
				retry = k.offer(ctx)
			}
		}
	}
}

// meet takes what the driver is now, and reports whether it has to be offered
// to the kubelet, again if it was before. A kubelet asks for the node's ID and
// topology at a registration only. Since it takes the driver out of CSINode for
// a moment when one is repeated, that is done only when its entry has become wrong.
func (k *keeper) meet(ctx context.Context, who drivername.Identity) bool {
	if who == k.driver {
		return false
	}
	if who.Name != k.driver.Name {
		k.withdraw(ctx)
	}
	k.driver, k.delay = who, k.o.Retry.Start
	return true
}

// verdicts returns nil while nothing is served.
func (k *keeper) verdicts() <-chan regserver.Verdict {
	if k.server == nil {
		return nil
	}
	return k.server.Verdicts()
}

// offer makes the socket, anew if there is one: it appears by a rename, which
// tells the kubelet to look. It returns when to try again, if it failed.
func (k *keeper) offer(ctx context.Context) <-chan time.Time {
	path := k.o.socketPath(k.driver.Name)
	socket, err := regsocket.Listen(path)
	if err != nil {
		k.machine.Count(state.ResultFailed)
		k.set(ctx, state.Failed, err.Error())
		return k.later()
	}
	old := k.server
	k.socket = socket
	k.server = regserver.Start(socket, regserver.Driver{
		Name: k.driver.Name, Endpoint: k.o.endpoint(k.driver.Name), RequiresPublishPod: k.o.RequiresPublishPod,
	})
	k.set(ctx, state.WaitingForKubelet, "")
	stop(ctx, old)
	return nil
}

// judge takes what the kubelet said. A refused socket stays until the next
// attempt, in case the kubelet changes its mind by itself.
func (k *keeper) judge(ctx context.Context, verdict regserver.Verdict) <-chan time.Time {
	if verdict.Registered {
		k.machine.Count(state.ResultRegistered)
		k.set(ctx, state.Registered, "")
		k.delay = k.o.Retry.Start
		return nil
	}
	k.machine.Count(state.ResultRejected)
	k.set(ctx, state.Rejected, verdict.Reason)
	return k.later()
}

// later returns when the next attempt is due, and doubles the delay of the one
// after that.
func (k *keeper) later() <-chan time.Time {
	delay := k.delay
	k.delay = min(2*delay, k.o.Retry.Max)
	return time.After(delay)
}

// again makes the socket, unless another registrar serves the path: one that was refused must not take it from
// its successor, and two that fought for it would never stop. When the other one has gone, look tells.
func (k *keeper) again(ctx context.Context) <-chan time.Time {
	if k.look(ctx) == regsocket.Replaced {
		return nil
	}
	return k.offer(ctx)
}

// look returns what became of the socket, and takes note. A socket that was not made yet is not missing.
func (k *keeper) look(ctx context.Context) regsocket.State {
	if k.socket == nil {
		return regsocket.Present
	}
	now := k.socket.State(ctx)
	switch now {
	case regsocket.Gone:
		klog.FromContext(ctx).Info("Registration socket is gone, making it again", logging.KeyPath, k.socket.Path())
	case regsocket.Replaced:
		k.set(ctx, state.Replaced, "another registrar serves "+k.socket.Path())
	case regsocket.Present:
	}
	return now
}

// withdraw ends the registration: the kubelet sees the socket go.
func (k *keeper) withdraw(ctx context.Context) {
	if k.socket == nil {
		return
	}
	if err := k.socket.Remove(); err != nil {
		klog.FromContext(ctx).Error(err, "Withdrawing the registration", logging.KeyDriver, k.driver.Name)
	}
	stop(ctx, k.server)
	k.socket, k.server = nil, nil
}

func stop(ctx context.Context, server *regserver.Server) {
	if server == nil {
		return
	}
	if err := server.Stop(); err != nil {
		klog.FromContext(ctx).Error(err, "Stopping the server of a registration socket")
	}
}

// set changes the state, and logs it if it was another.
func (k *keeper) set(ctx context.Context, phase state.Phase, reason string) {
	now := state.Snapshot{Driver: k.driver.Name, Phase: phase, Reason: reason, Socket: k.o.socketPath(k.driver.Name)}
	if k.machine.Set(now) {
		klog.FromContext(ctx).Info("State of the registration", logging.KeyDriver, k.driver.Name,
			logging.KeyState, now.String(), logging.KeyPath, now.Socket)
	}
}
