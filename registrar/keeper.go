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

// keeper keeps one registration socket in place. It re-creates the socket when the kubelet
// has refused the driver or another process has removed the socket.
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

// run serves the driver of the newest identity until ctx ends.
func (k *keeper) run(ctx context.Context, identities <-chan drivername.Identity) {
	defer k.withdraw(ctx)
	if err := regsocket.Clean(ctx, k.o.PluginRegistrationPath); err != nil {
		klog.FromContext(ctx).V(2).Info("Removing sockets of an earlier process failed", logging.KeyReason, err.Error())
	}
	check := time.NewTicker(k.o.CheckInterval)
	defer check.Stop()
	// retry is nil unless a new attempt is due; a nil channel never fires.
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case identity := <-identities:
			if k.setIdentity(ctx, identity) {
				retry = k.retryNow(ctx)
			}
		case verdict := <-k.verdicts():
			retry = k.onVerdict(ctx, verdict)
		case <-retry:
			retry = k.retryNow(ctx)
		case <-check.C:
			if retry == nil && k.checkSocket(ctx) == regsocket.Gone {
				retry = k.publish(ctx)
			}
		}
	}
}

// setIdentity stores the driver's identity and reports whether the driver has to be
// registered, again if it was before. A kubelet calls NodeGetInfo only during a registration.
// Repeating one removes the driver from CSINode for a moment, so it is repeated only when
// the kubelet's entry has become wrong.
func (k *keeper) setIdentity(ctx context.Context, identity drivername.Identity) bool {
	if identity == k.driver {
		return false
	}
	if identity.Name != k.driver.Name {
		k.withdraw(ctx)
	}
	k.driver, k.delay = identity, k.o.Retry.Start
	return true
}

// verdicts returns nil while nothing is served.
func (k *keeper) verdicts() <-chan regserver.Verdict {
	if k.server == nil {
		return nil
	}
	return k.server.Verdicts()
}

// publish makes the socket, replacing the present one if there is one: the socket appears by a
// rename, which the kubelet notices. If that fails, publish returns a timer for the next attempt.
func (k *keeper) publish(ctx context.Context) <-chan time.Time {
	path := k.o.socketPath(k.driver.Name)
	socket, err := regsocket.Listen(path)
	if err != nil {
		k.machine.Count(state.ResultFailed)
		k.set(ctx, state.Failed, err.Error())
		return k.nextRetry()
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

// onVerdict records the kubelet's answer. A refused socket stays until the next
// attempt, in case the kubelet accepts it later.
func (k *keeper) onVerdict(ctx context.Context, verdict regserver.Verdict) <-chan time.Time {
	if verdict.Registered {
		k.machine.Count(state.ResultRegistered)
		k.set(ctx, state.Registered, "")
		k.delay = k.o.Retry.Start
		return nil
	}
	k.machine.Count(state.ResultRejected)
	k.set(ctx, state.Rejected, verdict.Reason)
	return k.nextRetry()
}

// nextRetry returns a timer for the next attempt, and doubles the delay of the
// attempt after that.
func (k *keeper) nextRetry() <-chan time.Time {
	delay := k.delay
	k.delay = min(2*delay, k.o.Retry.Max)
	return time.After(delay)
}

// retryNow re-creates the socket, unless another registrar serves the path: a refused registrar must not replace the
// socket of its successor, and two registrars that did so would never stop. checkSocket notices when the other ends.
func (k *keeper) retryNow(ctx context.Context) <-chan time.Time {
	if k.checkSocket(ctx) == regsocket.Replaced {
		return nil
	}
	return k.publish(ctx)
}

// checkSocket returns the state of the socket and records it. A socket that was not made yet counts as present.
func (k *keeper) checkSocket(ctx context.Context) regsocket.State {
	if k.socket == nil {
		return regsocket.Present
	}
	now := k.socket.State(ctx)
	switch now {
	case regsocket.Gone:
		klog.FromContext(ctx).Info("Registration socket was removed, making it again", logging.KeyPath, k.socket.Path())
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
