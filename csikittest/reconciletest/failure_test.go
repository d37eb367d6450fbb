package reconciletest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// witness is a testing.TB that remembers failures instead of failing.
type witness struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	said   []string
}

func (w *witness) say(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = true
	w.said = append(w.said, text)
}

func (w *witness) Errorf(format string, args ...any) { w.say(fmt.Sprintf(format, args...)) }
func (w *witness) Fatal(args ...any)                 { w.say(fmt.Sprint(args...)); runtime.Goexit() }
func (w *witness) FailNow()                          { w.say("failed"); runtime.Goexit() }
func (w *witness) Logf(string, ...any)               {}
func (w *witness) Failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

func (w *witness) Fatalf(format string, args ...any) {
	w.say(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// perform runs a transcript that is expected to fail, and returns the reported failure.
func perform(t *testing.T, transcript string, component Start) string {
	t.Helper()
	w := &witness{TB: t}
	synctest.Test(t, func(*testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := newStage(w, Kinds{}, component)
			defer s.finish()
			datadriven.RunTestFromStringAny(w, transcript, s.play)
		}()
		<-done
	})
	return strings.Join(w.said, "\n")
}

// idle is a component that does nothing.
func idle(ctx context.Context, _ *Env) error {
	<-ctx.Done()
	return ctx.Err()
}

const claim = `apply
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
----
`

func TestFailures(t *testing.T) {
	t.Parallel()
	writer := func(ctx context.Context, env *Env) error {
		time.Sleep(settleTime + settleTime/2)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
		if _, err := env.Kube.Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
		return idle(ctx, env)
	}
	rude := func(ctx context.Context, env *Env) error {
		time.Sleep(settleTime + settleTime/2)
		env.Driver.AddVolume(csitest.Volume{ID: "v", Nodes: []string{"node-1"}})
		_, err := csi.NewControllerClient(env.Conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "v"})
		return errors.Join(err, idle(ctx, env))
	}
	hasty := func(ctx context.Context, env *Env) error {
		time.Sleep(settleTime + settleTime/2)
		for range 2 {
			_, _ = csi.NewControllerClient(env.Conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "v"})
			time.Sleep(settleTime)
		}
		return idle(ctx, env)
	}
	cases := map[string]struct {
		reason     string
		transcript string
		component  Start
		want       string
	}{
		"WrongOutput": {
			reason:     "What happened is compared with the file.",
			transcript: claim + "\nstart\n----\nsomething else\n", want: "(nothing)",
		},
		"ExpectNone": {
			reason:     "What must not happen cannot be blessed by -rewrite.",
			transcript: "start\n----\n(nothing)\n\nexpect-none\n----\n",
			component:  writer, want: "nothing was expected, but this happened",
		},
		"UnknownCommand":      {reason: "An unknown command is reported with the known ones.", transcript: "begin\n----\n", want: `unknown command "begin", known are: advance,`},
		"UnknownArgument":     {reason: "Arguments are not ignored.", transcript: "fault code=Internal methd=X\n----\n", want: `fault does not know the argument "methd"`},
		"UnknownCode":         {reason: "The name of a code is checked.", transcript: "fault code=Oops\n----\n", want: `"Oops" must be the name of a gRPC code`},
		"UnknownError":        {reason: "The name of an API error is checked.", transcript: "api-fault error=oops\n----\n", want: `unknown API error "oops"`},
		"UnknownCapability":   {reason: "The name of a capability is checked.", transcript: "caps controller=(FLY)\n----\n", want: `"FLY" is not a capability`},
		"UnknownKind":         {reason: "The kind is checked.", transcript: "dump unicorns\n----\n", want: `unknown kind "unicorns"`},
		"UnknownKindDelete":   {reason: "The kind is checked.", transcript: "delete unicorn x\n----\n", want: `unknown kind "unicorn"`},
		"DeleteWithoutName":   {reason: "An object has a name.", transcript: "delete secret\n----\n", want: "delete needs two arguments"},
		"DeleteMissing":       {reason: "The object must exist.", transcript: "delete secret default/x\n----\n", want: "not found"},
		"PatchMissing":        {reason: "The object must exist.", transcript: "patch secret default/x\ndata: {}\n----\n", want: "not found"},
		"PatchNoYAML":         {reason: "The patch must be YAML.", transcript: "patch secret default/x\n{\n----\n", want: "read patch"},
		"ApplyNoObject":       {reason: "The object must be one.", transcript: "apply\nkind: Nonsense\n----\n", want: "read object"},
		"ApplyUnknownField":   {reason: "Fields are checked.", transcript: "apply\napiVersion: v1\nkind: Node\nmetadata: {name: node}\nspeck: {}\n----\n", want: `unknown field "speck"`},
		"DumpWithoutKind":     {reason: "A kind is needed.", transcript: "dump\n----\n", want: "dump needs a kind"},
		"FaultWithoutEffect":  {reason: "A fault must do something.", transcript: "fault method=CreateVolume\n----\n", want: "fault needs one of"},
		"APIFaultNoEffect":    {reason: "A fault must do something.", transcript: "api-fault verb=create\n----\n", want: "api-fault needs one of"},
		"StopWithoutStart":    {reason: "Only what runs can stop.", transcript: "stop\n----\n", want: "does not run"},
		"CrashWithoutStart":   {reason: "Only what runs can crash.", transcript: "crash\n----\n", want: "does not run"},
		"StartTwice":          {reason: "There is one component.", transcript: "start\n----\n(nothing)\n\nstart\n----\n", want: "runs already"},
		"DriverAfterStart":    {reason: "The driver is there before the component.", transcript: "start\n----\n(nothing)\n\ndriver\n----\n", want: "driver must come before start"},
		"AdvanceWithoutTime":  {reason: "Time needs an amount.", transcript: "advance\n----\n", want: "needs one argument: duration"},
		"AdvanceNonsense":     {reason: "The amount is a duration.", transcript: "advance soon\n----\n", want: `"soon" must be a duration`},
		"NegativeTimes":       {reason: "A count is a whole number.", transcript: "fault code=Internal times=-1\n----\n", want: `"-1" must be a whole number`},
		"TopologyWithoutPair": {reason: "A segment has keys and values.", transcript: "driver topology=(zone)\n----\n", want: "must be key=value pairs"},
		"Violation": {
			reason:     "Calls against the specification fail the test at its end.",
			transcript: "start\n----\n(nothing)\n\nadvance 1s\n----\n", component: rude, want: "against the life cycle of CSI",
		},
		"RepeatedTooSoon": {
			reason:     "A failed call is not repeated before its pause is over.",
			transcript: "fault method=DeleteVolume code=Internal\n----\n\nstart\n----\n(nothing)\n\nadvance 2s\n----\n", component: hasty, want: "DeleteVolume is called again 500ms after failure 1 in a row",
		},
		"NeverEnds": {
			reason:     "A component that ignores its context is found out.",
			transcript: "start\n----\n(nothing)\n\nstop\n----\n", want: "has not ended within 1h0m0s",
			component: func(context.Context, *Env) error { sleepLong(); return nil },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			component := tc.component
			if component == nil {
				component = idle
			}
			if got := perform(t, tc.transcript, component); !strings.Contains(got, tc.want) {
				t.Errorf("%s: want %q in the failure, got:\n%s", tc.reason, tc.want, got)
			}
		})
	}
}
