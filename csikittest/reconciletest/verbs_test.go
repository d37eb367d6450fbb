package reconciletest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// say plays commands, each a line that may be followed by input, and returns what each of them prints.
func say(t *testing.T, component Start, commands ...string) []string {
	t.Helper()
	printed := make([]string, 0, len(commands))
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Kinds{}, component)
		defer s.finish()
		for _, text := range commands {
			line, input, _ := strings.Cut(text, "\n")
			name, args, err := datadriven.ParseLine(line)
			if err != nil {
				t.Fatal(err)
			}
			printed = append(printed, s.do(&datadriven.TestData{Cmd: name, CmdArgs: args, Input: input}))
		}
	})
	return printed
}

// prober makes a volume and a secret, three times with ten seconds between.
func prober(ctx context.Context, env *Env) error {
	for i := range 3 {
		_, err := csi.NewControllerClient(env.Conn).CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: fmt.Sprintf("v-%d", i), Secrets: map[string]string{"password": "hunter2"},
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}},
		})
		if err != nil {
			return err
		}
		name := env.Arg("name", "note")
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)}}
		if _, err := env.Kube.Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Second):
		}
	}
	return nil
}

const (
	firstRound = "api create secrets default/note-0\n    metadata:\n      name: note-0\n      namespace: default\n" +
		"csi CreateVolume -> OK\n    name: v-0\n    secrets:\n      password: '***stripped***'\n    volume_capabilities:\n" +
		"    - access_mode:\n        mode: SINGLE_NODE_WRITER\n      block: {}\n"
	secretYAML = "apply\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: default, labels: {a: \"1\"}}\n"
)

func TestVerbs(t *testing.T) {
	t.Parallel()
	ends := func(context.Context, *Env) error { return errors.New("no licence") }
	cases := map[string]struct {
		reason    string
		component Start
		commands  []string
		want      string // of the last command
	}{
		"StartIdle":   {reason: "A component may do nothing.", commands: []string{"start"}, want: "(nothing)\n"},
		"StartEnds":   {reason: "A component that ends by itself is noticed, with its error.", component: ends, commands: []string{"start"}, want: "stopped: no licence\n"},
		"StartArgs":   {reason: "Arguments reach the component.", component: echo, commands: []string{"start a=1 list=(x,y)"}, want: "stopped: a=1 list=x,y missing=-\n"},
		"StopIdle":    {reason: "An end that was asked for is no news.", commands: []string{"start", "stop"}},
		"RestartKeep": {reason: "A restart without arguments keeps them.", component: echo, commands: []string{"start a=1", "restart"}, want: "stopped: a=1 list=- missing=-\n"},
		"RestartNew":  {reason: "A restart with arguments replaces them.", component: echo, commands: []string{"start a=1", "restart a=2"}, want: "stopped: a=2 list=- missing=-\n"},
		"RestartStop": {reason: "A restart may come after a stop.", commands: []string{"start", "stop", "restart"}, want: "(nothing)\n"},
		"Crash":       {reason: "A crash is silent: the component has no say.", commands: []string{"start", "crash"}},
		"CrashTwice":  {reason: "After a crash there is a next life.", commands: []string{"start", "crash", "start", "crash", "restart"}, want: "(nothing)\n"},
		"Settle":      {reason: "Without a component there is nothing to say.", commands: []string{"settle"}},
		"SettleIdle":  {reason: "With one there is.", commands: []string{"start", "settle"}, want: "(nothing)\n"},
		"Advance": {
			reason: "What happens later has its time.", component: prober, commands: []string{"start", "advance 10s"},
			want: "+9.5s api create secrets default/note-1\n    metadata:\n      name: note-1\n      namespace: default\n" +
				"+9.5s csi CreateVolume -> OK\n    name: v-1\n    secrets:\n      password: '***stripped***'\n    volume_capabilities:\n" +
				"    - access_mode:\n        mode: SINGLE_NODE_WRITER\n      block: {}\n",
		},
		"Output":     {reason: "Requests are printed without secrets.", component: prober, commands: []string{"start"}, want: firstRound},
		"ExpectNone": {reason: "Nothing was expected, and nothing happened.", commands: []string{"start", "expect-none"}, want: "(nothing)\n"},
		"Apply":      {reason: "What a user does is not what the component does.", commands: []string{secretYAML}},
		"ApplyTwo":   {reason: "Several documents, some of them empty.", commands: []string{secretYAML + "---\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: t, namespace: default}\n", "dump secret default/t"}, want: "metadata:\n  name: t\n  namespace: default\n"},
		"ApplyAgain": {reason: "A second apply replaces.", commands: []string{secretYAML, strings.ReplaceAll(secretYAML, `"1"`, `"2"`), "dump secret default/s"}, want: "metadata:\n  labels:\n    a: \"2\"\n  name: s\n  namespace: default\n"},
		"Dump":       {reason: "Objects without what differs from run to run.", commands: []string{secretYAML, "dump secrets"}, want: "metadata:\n  labels:\n    a: \"1\"\n  name: s\n  namespace: default\n"},
		"DumpNone":   {reason: "The output says that there is no object.", commands: []string{"dump pod"}, want: "(none)\n"},
		"DumpOther":  {reason: "Nor is one of another name.", commands: []string{secretYAML, "dump secret default/t"}, want: "(none)\n"},
		"DumpMany":   {reason: "Several are documents of one stream, sorted.", commands: []string{"apply\napiVersion: v1\nkind: Secret\nmetadata: {name: b}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "dump secrets"}, want: "metadata:\n  name: a\n  namespace: default\n---\nmetadata:\n  name: b\n  namespace: default\n"},
		"Patch":      {reason: "Input is merged, null removes.", commands: []string{secretYAML, "patch secret default/s\nmetadata: {labels: {a: null, b: \"2\"}}\n", "dump secret default/s"}, want: "metadata:\n  labels:\n    b: \"2\"\n  name: s\n  namespace: default\n"},
		"Delete":     {reason: "A deleted object is gone.", commands: []string{secretYAML, "delete secret default/s", "dump secrets"}, want: "(none)\n"},
		"DeleteHeld": {reason: "A finalizer holds it.", commands: []string{"apply\napiVersion: v1\nkind: Secret\nmetadata: {name: held, finalizers: [f]}\n", "delete secret default/held", "dump secrets"}, want: "metadata:\n  deletionGracePeriodSeconds: 0\n  deletionTimestamp: <time>\n  finalizers:\n  - f\n  name: held\n  namespace: default\n"},
		"Watches":    {reason: "Broken watches are not in the transcript.", commands: []string{"start", "break-watches compact"}, want: "(nothing)\n"},
		"Volumes":    {reason: "The output says that there is no volume.", commands: []string{"volumes"}, want: "(none)\n"},
		"Volume":     {reason: "A volume has the arguments of its command.", commands: []string{"volume v1 name=n capacity=4096 node=node-1 topology=(zone=a)", "volumes"}, want: "- Capacity: 4096\n  ID: v1\n  Name: \"n\"\n  Nodes:\n  - node-1\n  Topology:\n    zone: a\n"},
		"Vanish":     {reason: "A volume may vanish.", commands: []string{"volume v1", "volume v2 capacity=1", "vanish v1", "volumes"}, want: "- Capacity: 1\n  ID: v2\n"},
		"FaultOnce": {
			reason: "A fault ends the component that does not expect it.", component: prober,
			commands: []string{"fault method=CreateVolume code=INTERNAL message=boom times=1", "start"},
			want: "csi CreateVolume -> Internal: boom\n    name: v-0\n    secrets:\n      password: '***stripped***'\n    volume_capabilities:\n" +
				"    - access_mode:\n        mode: SINGLE_NODE_WRITER\n      block: {}\nstopped: rpc error: code = Internal desc = boom\n",
		},
		"FaultHealed": {
			reason: "A fault that is healed does nothing.", component: prober,
			commands: []string{"fault code=Internal", "api-fault error=internal", "fault method=CreateVolume crash", "heal", "start"}, want: firstRound,
		},
		"FaultOther": {
			reason: "A fault of another method does nothing.", component: prober, commands: []string{"fault method=DeleteVolume code=Internal", "start"}, want: firstRound,
		},
		"APIFault": {
			reason: "A write that failed is in the transcript.", component: prober,
			commands: []string{"driver name=other", "api-fault verb=create resource=secrets name=note-0 error=forbidden message=(not yours)", "fault method=CreateVolume delay=1s", "start", "advance 1s"},
			want:     "api create secrets default/note-0 -> Forbidden\ncsi CreateVolume (same request) -> OK\nstopped: secrets \"note-0\" is forbidden: not yours\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			component := tc.component
			if component == nil {
				component = idle
			}
			printed := say(t, component, tc.commands...)
			if d := cmp.Diff(tc.want, printed[len(printed)-1]); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

// echo ends at once, by an error that lists its arguments.
func echo(_ context.Context, env *Env) error {
	return fmt.Errorf("a=%s list=%s missing=%s", env.Arg("a", "-"), env.Arg("list", "-"), env.Arg("missing", "-"))
}

// What each name of an API error makes of a request, for the component and for the transcript.
func TestAPIErrors(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		is   func(error) bool
		want string
	}{
		"conflict":          {apierrors.IsConflict, "Conflict"},
		"not-found":         {apierrors.IsNotFound, "NotFound"},
		"already-exists":    {apierrors.IsAlreadyExists, "AlreadyExists"},
		"forbidden":         {apierrors.IsForbidden, "Forbidden"},
		"denied":            {apierrors.IsInvalid, "Invalid"},
		"invalid":           {apierrors.IsInvalid, "Invalid"},
		"stale":             {kube.IsStale, "Invalid"},
		"timeout":           {apierrors.IsTimeout, "Timeout"},
		"too-many-requests": {apierrors.IsTooManyRequests, "TooManyRequests"},
		"internal":          {apierrors.IsInternalError, "InternalError"},
		"unavailable":       {apierrors.IsServiceUnavailable, "ServiceUnavailable"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got error
			component := func(ctx context.Context, env *Env) error {
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
				_, got = env.Kube.Secrets("default").Create(ctx, secret, metav1.CreateOptions{})
				return idle(ctx, env)
			}
			printed := say(t, component, "api-fault verb=create resource=secrets namespace=default error="+name+" times=1", "start")
			if !tc.is(got) {
				t.Errorf("the component got %v", got)
			}
			if want := "api create secrets default/s -> " + tc.want + "\n"; printed[1] != want {
				t.Errorf("got %q, want %q", printed[1], want)
			}
		})
	}
}

// Which effects a crash leaves behind, and that no answer comes back.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		fault   string
		want    string // headlines
		volumes bool   // one was made
		secrets bool
	}{
		"BeforeCall":  {reason: "The driver does not learn of it.", fault: "fault method=CreateVolume crash", want: "csi CreateVolume -> crash before the call; crashed"},
		"AfterCall":   {reason: "The driver has done it.", fault: "fault method=CreateVolume crash after", want: "csi CreateVolume -> OK, crash after the call; crashed", volumes: true},
		"BeforeWrite": {reason: "The API does not learn of it.", fault: "api-fault verb=create resource=secrets crash", want: "csi CreateVolume -> OK; crashed", volumes: true},
		"AfterWrite":  {reason: "The API has stored it.", fault: "api-fault verb=create resource=secrets crash after", want: "api create secrets default/note-0; csi CreateVolume -> OK; crashed", volumes: true, secrets: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			printed := say(t, prober, tc.fault, "start", "volumes", "dump secrets")
			var heads []string
			for line := range strings.Lines(printed[1]) {
				if !strings.HasPrefix(line, " ") {
					heads = append(heads, strings.TrimSuffix(line, "\n"))
				}
			}
			if d := cmp.Diff(tc.want, strings.Join(heads, "; ")); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			if got := printed[2] != "(none)\n"; got != tc.volumes {
				t.Errorf("%s A volume was made: %t", tc.reason, got)
			}
			if got := printed[3] != "(none)\n"; got != tc.secrets {
				t.Errorf("%s An object was stored: %t", tc.reason, got)
			}
		})
	}
}

// A crash point is used up by its crash: the next life gets through.
func TestNextLifeAfterACrash(t *testing.T) {
	t.Parallel()
	printed := say(t, prober, "fault method=CreateVolume crash", "start", "restart")
	if !strings.Contains(printed[1], "crashed") || strings.Contains(printed[2], "crash") || !strings.Contains(printed[2], "csi CreateVolume (same request) -> OK") {
		t.Errorf("got %q, then %q", printed[1], printed[2])
	}
}

// Calls that a component makes after its crash do not reach the driver or the API server.
func TestNothingLeavesACrashedComponent(t *testing.T) {
	t.Parallel()
	var apiErr, csiErr error
	zombie := func(ctx context.Context, env *Env) error {
		<-ctx.Done()
		rest := context.WithoutCancel(ctx)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
		_, apiErr = env.Kube.Secrets("default").Create(rest, secret, metav1.CreateOptions{})
		_, csiErr = csi.NewIdentityClient(env.Conn).Probe(rest, &csi.ProbeRequest{})
		return nil
	}
	printed := say(t, zombie, "start", "crash", "dump secrets", "start", "stop", "dump secrets")
	if printed[1] != "" || printed[2] != "(none)\n" {
		t.Errorf("after the crash: %q, %q", printed[1], printed[2])
	}
	if apiErr != nil || csiErr != nil || !strings.Contains(printed[4], "api create secrets default/late") {
		t.Errorf("a component that is stopped in good order may tidy up: %v, %v, %q", apiErr, csiErr, printed[4])
	}
}

// The end of a crashed component must not be taken for an order to finish.
func TestCrashForbidsToFinish(t *testing.T) {
	t.Parallel()
	var cause error
	component := func(ctx context.Context, _ *Env) error {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return cause
	}
	printed := say(t, component, "start", "crash")
	var abort interface{ Abort() bool }
	if !errors.As(cause, &abort) || !abort.Abort() || cause.Error() != "crash" {
		t.Errorf("cause %v", cause)
	}
	if printed[1] != "" {
		t.Errorf("the error of a crashed component must not be printed, got %q", printed[1])
	}
}
