package clusterregistrar

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// parse returns the options that the arguments make.
func parse(args ...string) (Options, error) { return commandtest.Parse(NewOptions, args...) }

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-cluster-driver-registrar", NewOptions, "--kube-api-timeout=0")
}

// TestUpstreamFlags keeps a manifest that was written for the cluster-driver-registrar working.
func TestUpstreamFlags(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions, "--csi-address=/csi/csi.sock", "--connection-timeout=15s", "--driver-requires-attachment=false",
		"--pod-info-mount-version=v1", "--kubeconfig=/k", "--v=5")
	if spec := o.spec(); spec.AttachRequired == nil || *spec.AttachRequired || spec.PodInfoOnMount == nil || !*spec.PodInfoOnMount {
		t.Errorf("values did not arrive: %+v", o.Spec)
	}
	if o := commandtest.Accepts(t, NewOptions, "--pod-info-mount"); !*o.spec().PodInfoOnMount {
		t.Error("the flag alone is true")
	}
}

// TestSpec reads all fields of the spec from flags. A new field of the API needs a flag.
func TestSpec(t *testing.T) {
	o := commandtest.Accepts(t, NewOptions,
		"--driver-requires-attachment", "--pod-info-mount=false", "--storage-capacity=true", "--requires-republish", "--se-linux-mount", "--service-account-token-in-secrets",
		"--prevent-pod-scheduling-if-missing", "--volume-lifecycle-modes=Persistent, Ephemeral", "--fs-group-policy=File",
		`--token-requests=[{"audience":""},{"audience":"https://vault.example:8200","expirationSeconds":3600}]`, "--node-allocatable-update-period=1m")
	want := storagev1.CSIDriverSpec{
		AttachRequired: new(true), PodInfoOnMount: new(false), StorageCapacity: new(true), RequiresRepublish: new(true), SELinuxMount: new(true),
		ServiceAccountTokenInSecrets: new(true), PreventPodSchedulingIfMissing: new(true),
		VolumeLifecycleModes:               []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		FSGroupPolicy:                      new(storagev1.FileFSGroupPolicy),
		TokenRequests:                      []storagev1.TokenRequest{{}, {Audience: "https://vault.example:8200", ExpirationSeconds: new(int64(3600))}},
		NodeAllocatableUpdatePeriodSeconds: new(int64(60)),
	}
	if diff := cmp.Diff(want, o.spec()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDefaults(t *testing.T) {
	commandtest.Defaults(t, NewOptions, map[string]string{
		"csi-address": "/run/csi/socket", "kubeconfig": "", "version": "false", "connection-timeout": "", "pod-info-mount-version": "",
		"driver-requires-attachment": "", "pod-info-mount": "", "storage-capacity": "", "requires-republish": "", "se-linux-mount": "",
		"service-account-token-in-secrets": "", "prevent-pod-scheduling-if-missing": "", "volume-lifecycle-modes": "", "fs-group-policy": "",
		"token-requests": "", "node-allocatable-update-period": "", "delete-on-exit": "false", "leader-election": "false", "timeout": "15s",
	})
	if o := commandtest.Accepts(t, NewOptions); cmp.Diff(storagev1.CSIDriverSpec{}, o.spec()) != "" {
		t.Errorf("fields are set without flags: %+v", o.spec())
	}
}

func TestValidate(t *testing.T) {
	commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
		"Defaults": {Reason: "they are valid and warn about nothing"},
		"Everything": {
			Reason: "all that is wrong is reported at once, by flag and rule",
			Args: []string{"--kube-api-timeout=0", "--timeout=0", "--csi-address=", "--pod-info-mount-version=v2", "--service-account-token-in-secrets", "--delete-on-exit", "--leader-election",
				"--leader-election-lease-duration=5s"},
			Errors: []string{"--kube-api-timeout=0", "--timeout=0", "--csi-address", `--pod-info-mount-version="v2": must be v1`, "--service-account-token-in-secrets=true: needs --token-requests",
				"--delete-on-exit=true: must not be set together with --leader-election", "--leader-election-lease-duration=5s"},
			Warnings: []string{"--pod-info-mount-version"},
		},
		"Contradiction": {
			Reason: "two flags for one field", Args: []string{"--pod-info-mount=false", "--pod-info-mount-version=v1"},
			Errors: []string{"must not be set together with --pod-info-mount=false"}, Warnings: []string{"--pod-info-mount-version"},
		},
		"Deprecated": {
			Reason: "what has another name, or no effect, is mentioned", Args: []string{"--connection-timeout=1s", "--pod-info-mount-version=v1"},
			Warnings: []string{"--connection-timeout", "--pod-info-mount-version"},
		},
		"Fields": {
			Reason: "as the API server has it", Args: []string{"--volume-lifecycle-modes=ephemeral,Ephemeral,Ephemeral", "--fs-group-policy=none", "--node-allocatable-update-period=9s"},
			Errors: []string{`--volume-lifecycle-modes="ephemeral": must be Persistent, Ephemeral`, `--volume-lifecycle-modes="Ephemeral"`, `--fs-group-policy="none"`, "--node-allocatable-update-period=9s: must be at least 10s"},
		},
		"NoList":       {Reason: "not JSON", Args: []string{"--token-requests=vault"}, Usage: []string{"invalid character", "-token-requests"}},
		"NoDuration":   {Reason: "usage errors name flag and value", Args: []string{"--node-allocatable-update-period=10"}, Usage: []string{`"10"`, "-node-allocatable-update-period"}},
		"Bool":         {Reason: "true or false", Args: []string{"--se-linux-mount=maybe"}, Usage: []string{"maybe", "-se-linux-mount"}},
		"DeleteOnExit": {Reason: "one instance may", Args: []string{"--delete-on-exit"}},
	})
}
