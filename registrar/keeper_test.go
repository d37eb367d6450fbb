package registrar

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/registrar/internal/drivername"
	"github.com/longshore-csi/longshore/registrar/internal/regserver"
	"github.com/longshore-csi/longshore/registrar/internal/regsocket"
	"github.com/longshore-csi/longshore/registrar/internal/state"
)

// A rolling update often comes because the old version is refused. Its next attempt must not take the socket from
// the new version, which may be registered by then.
func TestRefusedRegistrarLeavesItsSuccessorAlone(t *testing.T) {
	cases := map[string]struct {
		reason string
		again  func(k *keeper)
	}{
		"Retry":  {reason: "the pause after the refusal is over", again: func(k *keeper) { k.onVerdict(t.Context(), regserver.Verdict{Reason: "no"}) }},
		"Driver": {reason: "the driver reports another node ID", again: func(k *keeper) { k.setIdentity(t.Context(), drivername.Identity{Name: driverName, Generation: 2}) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			o.PluginRegistrationPath = t.TempDir()
			machine := state.New(prometheus.NewRegistry())
			k := newKeeper(o, machine)
			defer k.withdraw(t.Context())
			k.setIdentity(t.Context(), drivername.Identity{Name: driverName, Generation: 1})
			if retry := k.retryNow(t.Context()); retry != nil || k.checkSocket(t.Context()) != regsocket.Present {
				t.Fatal("the socket was not made")
			}
			successor, err := regsocket.Listen(o.socketPath(driverName))
			if err != nil {
				t.Fatal(err)
			}
			tc.again(k)
			if retry := k.retryNow(t.Context()); retry != nil || successor.State(t.Context()) != regsocket.Present {
				t.Errorf("%s: the successor's socket is %v, want it left alone", tc.reason, successor.State(t.Context()))
			}
			if got := machine.Get().Phase; got != state.Replaced {
				t.Errorf("%s: state %q, want %q", tc.reason, got, state.Replaced)
			}
			if err := successor.Close(); err != nil {
				t.Fatal(err)
			}
			if got := k.checkSocket(t.Context()); got != regsocket.Gone {
				t.Errorf("%s: after its successor has ended the socket is %v, want %v: it is to be made again", tc.reason, got, regsocket.Gone)
			}
		})
	}
}
