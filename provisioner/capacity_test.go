package provisioner

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/provisioner/internal/capacity"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
)

// TestCapacityTranscripts runs whole instances.
func TestCapacityTranscripts(t *testing.T) {
	reconciletest.RunWith(t, "testdata/capacity", reconciletest.Kinds{Install: kubeapitest.Install}, runInstance)
}

// runInstance runs an instance on the stage of a transcript. The pairs of the command "start" are its flags, "node" being the
// environment's NODE_NAME.
func runInstance(ctx context.Context, env *reconciletest.Env) error {
	o, fs := newFlags()
	args := []string{"--enable-capacity"}
	for name, value := range env.Args {
		switch name {
		case "node":
			o.Node.Name = value
			args = append(args, "--node-deployment")
		default:
			args = append(args, "--"+name+"="+value)
		}
	}
	env.Cluster.SetLatency("csistoragecapacities", 2*time.Microsecond) // after the calls that they report
	o.Capacity.Namespace, o.Capacity.Pod = "storage", "driver-0"
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	config := o.sidecar(connections{kube: kubeapitest.New(env.Kube), host: "host", identity: "me"})
	config.CSI.Conn = env.Conn
	return sidecar.Run(ctx, config)
}

// TestCapacityFlags validates the flags.
func TestCapacityFlags(t *testing.T) {
	t.Setenv(EnvNamespace, "storage")
	t.Setenv(EnvPodName, "driver-0")
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Good":    {Reason: "Namespace and pod come from the environment.", Args: []string{"--enable-capacity"}},
		"NoOwner": {Reason: "Nobody may own them.", Args: []string{"--enable-capacity", "--capacity-ownerref-level=-1"}},
		"NoLimit": {Reason: "A limit of 0 is none, and needs no burst.", Args: []string{"--enable-capacity", "--kube-api-capacity-qps=0", "--kube-api-capacity-burst=0"}},
		"Bad": {
			Reason: "One look shows all that is to be mended.",
			Args: []string{
				"--enable-capacity", "--capacity-ownerref-level=-2", "--capacity-poll-interval=0s", "--capacity-threads=0", "--kube-api-capacity-qps=-1",
			},
			Errors: []string{"--capacity-ownerref-level=-2", "--capacity-poll-interval=0s", "--capacity-threads=0", "--kube-api-capacity-qps=-1"},
		},
		"NoBurst": {Reason: "A limit without a burst lets nothing through.", Args: []string{"--enable-capacity", "--kube-api-capacity-qps=1", "--kube-api-capacity-burst=0"}, Errors: []string{"--kube-api-capacity-burst=0"}},
	})
	t.Setenv(EnvNamespace, "")
	t.Setenv("POD_NAMESPACE", "")
	t.Setenv(EnvPodName, "")
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Nowhere":   {Reason: "The objects are somewhere, and owned by the owner of a pod.", Args: []string{"--enable-capacity"}, Errors: []string{EnvNamespace, EnvPodName}},
		"NoPod":     {Reason: "Without an owner no pod is needed.", Args: []string{"--enable-capacity", "--capacity-ownerref-level=-1"}, Errors: []string{EnvNamespace}},
		"Elsewhere": {Reason: "What is off needs nothing."},
	})
	t.Setenv("POD_NAMESPACE", "other")
	if got := NewOptions().Capacity.Namespace; got != "other" {
		t.Errorf("namespace %q: the variable that the lease is found by is taken as well", got)
	}
}

// TestCapacitySettings gives every flag another value, and finds it where it belongs.
func TestCapacitySettings(t *testing.T) {
	t.Setenv(EnvNodeName, "n1")
	t.Setenv(EnvNamespace, "storage")
	t.Setenv(EnvPodName, "driver-0")
	owner := &metav1.OwnerReference{Name: "driver"}
	for arg, change := range map[string]func(*capacity.Settings){
		"":                                 func(*capacity.Settings) {},
		"--capacity-for-immediate-binding": func(s *capacity.Settings) { s.Immediate = true },
		"--capacity-poll-interval=3s":      func(s *capacity.Settings) { s.Poll = 3 * time.Second },
		"--capacity-threads=4":             func(s *capacity.Settings) { s.Workers = 4 },
		"--timeout=1m":                     func(s *capacity.Settings) { s.Timeout = time.Minute },
		"--termination-grace-period=1m":    func(s *capacity.Settings) { s.Drain = 55 * time.Second },
		"--retry-interval-max=9m":          func(s *capacity.Settings) { s.Retry.Max = 9 * time.Minute },
		"--node-deployment":                func(s *capacity.Settings) { s.ManagedBy = "external-provisioner-n1" },
	} {
		t.Run(strings.TrimLeft(arg, "-"), func(t *testing.T) {
			o, fs := newFlags()
			if err := fs.Parse(strings.Fields("--enable-capacity " + arg)); err != nil {
				t.Fatal(err)
			}
			want := capacity.Settings{
				Namespace: "storage", ManagedBy: "external-provisioner", Owner: owner, Poll: time.Minute, Workers: 1, Retry: flagset.NewRetry(), Timeout: 10 * time.Second, Drain: 25 * time.Second,
			}
			change(&want)
			p := idle(o)
			p.owner = owner
			if diff := cmp.Diff(want, p.capacitySettings()); diff != "" {
				t.Errorf("settings with %q (-want +got):\n%s", arg, diff)
			}
		})
	}
}
