package clusterregistrar

import (
	"encoding/json"
	"errors"
	"flag"
	"slices"
	"strconv"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// Options configure one registrar. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other sidecars.
	sidecar.Options

	// Spec has the fields that flags set. A field that is nil or empty is not written, so that it has the default of the API server or what others
	// write; AttachRequired is then what the driver announces.
	Spec storagev1.CSIDriverSpec
	// DeleteOnExit deletes the object when the process ends, if no other field manager has a field of its spec.
	DeleteOnExit bool

	podInfoVersion string
	ignored        flagset.Ignored
}

// NewOptions returns the defaults.
func NewOptions() Options { return Options{Options: sidecar.NewOptions(nil)} }

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, &o.CSI, &o.Options)
	spec := &o.Spec
	boolean(fs, &spec.AttachRequired, "driver-requires-attachment", "field attachRequired: volumes are attached by ControllerPublishVolume before they are mounted; "+
		"not given: whether the driver announces PUBLISH_UNPUBLISH_VOLUME")
	boolean(fs, &spec.PodInfoOnMount, "pod-info-mount", "field podInfoOnMount: the kubelet passes name, namespace and UID of the pod to NodePublishVolume")
	boolean(fs, &spec.StorageCapacity, "storage-capacity",
		"field storageCapacity: the scheduler respects the CSIStorageCapacity objects that csi-provisioner publishes with --enable-capacity")
	boolean(fs, &spec.RequiresRepublish, "requires-republish", "field requiresRepublish: the kubelet calls NodePublishVolume again and again")
	boolean(fs, &spec.SELinuxMount, "se-linux-mount", "field seLinuxMount: volumes can be mounted with -o context")
	boolean(fs, &spec.ServiceAccountTokenInSecrets, "service-account-token-in-secrets",
		"field serviceAccountTokenInSecrets: tokens are passed as secrets, not in the volume context; needs --token-requests")
	boolean(fs, &spec.PreventPodSchedulingIfMissing, "prevent-pod-scheduling-if-missing",
		"field preventPodSchedulingIfMissing: pods with volumes of the driver are scheduled only to nodes that have it")
	fs.Func("volume-lifecycle-modes", "field volumeLifecycleModes, comma-separated `modes`: Persistent, Ephemeral", func(text string) error {
		spec.VolumeLifecycleModes = nil
		for mode := range strings.SplitSeq(text, ",") {
			spec.VolumeLifecycleModes = append(spec.VolumeLifecycleModes, storagev1.VolumeLifecycleMode(strings.TrimSpace(mode)))
		}
		return nil
	})
	fs.Func("fs-group-policy", "field fsGroupPolicy, a `policy`: ReadWriteOnceWithFSType, File or None", func(text string) error {
		spec.FSGroupPolicy = new(storagev1.FSGroupPolicy(text))
		return nil
	})
	fs.Func("token-requests", "field tokenRequests as `JSON`, such as [{\"audience\":\"vault\",\"expirationSeconds\":3600}]: "+
		"tokens of the pod's service account that the kubelet passes to NodePublishVolume", func(text string) error {
		spec.TokenRequests = nil
		return json.Unmarshal([]byte(text), &spec.TokenRequests)
	})
	fs.Func("node-allocatable-update-period", "field nodeAllocatableUpdatePeriodSeconds: `interval` at which the kubelet asks again how many volumes a node takes, at least 10s",
		func(text string) error {
			period, err := time.ParseDuration(text)
			spec.NodeAllocatableUpdatePeriodSeconds = new(int64(period / time.Second))
			return err
		})
	fs.StringVar(&o.podInfoVersion, "pod-info-mount-version", "", "deprecated, use --pod-info-mount: `version` of the pod's information, v1")
	fs.BoolVar(&o.DeleteOnExit, "delete-on-exit", o.DeleteOnExit,
		"delete the CSIDriver object when the process ends, if no other field manager has a field of its spec; not together with --leader-election")
	o.ignored.Duration(fs, "connection-timeout", "the driver is waited for")
}

// boolean registers the flag of a field that is nil unless the flag is given.
func boolean(fs *flag.FlagSet, to **bool, name, usage string) {
	fs.BoolFunc(name, usage, func(text string) error {
		value, err := strconv.ParseBool(text)
		*to = &value
		return err
	})
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule. Of the fields of the object, the API server knows further rules.
func (o *Options) Validate() error {
	const shortest = 10 // seconds
	version, spec := o.podInfoVersion, o.Spec
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	policies := []storagev1.FSGroupPolicy{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy}
	errs := []error{
		flagset.Validate(&o.CSI, &o.Options),
		flagset.Require(version == "" || version == "v1", "pod-info-mount-version", version, "must be v1"),
		flagset.Require(version == "" || spec.PodInfoOnMount == nil || *spec.PodInfoOnMount, "pod-info-mount-version", version, "must not be set together with --pod-info-mount=false"),
		flagset.Require(spec.ServiceAccountTokenInSecrets == nil || len(spec.TokenRequests) > 0, "service-account-token-in-secrets", true, "needs --token-requests"),
		// Another instance may be using the object, or waiting to.
		flagset.Require(!o.DeleteOnExit || !o.LeaderElection.Enabled, "delete-on-exit", true, "must not be set together with --leader-election"),
	}
	for i, mode := range spec.VolumeLifecycleModes {
		good := slices.Contains(modes, mode) && !slices.Contains(spec.VolumeLifecycleModes[:i], mode)
		errs = append(errs, flagset.Require(good, "volume-lifecycle-modes", string(mode), "must be Persistent, Ephemeral, or both with a comma"))
	}
	if policy := spec.FSGroupPolicy; policy != nil {
		errs = append(errs, flagset.Require(slices.Contains(policies, *policy), "fs-group-policy", string(*policy), "must be ReadWriteOnceWithFSType, File or None"))
	}
	if period := spec.NodeAllocatableUpdatePeriodSeconds; period != nil {
		errs = append(errs, flagset.Require(*period >= shortest, "node-allocatable-update-period", time.Duration(*period)*time.Second, "must be at least 10s"))
	}
	return errors.Join(errs...)
}

// Warnings returns a text for each flag that was given although it is deprecated or without effect.
func (o *Options) Warnings() []string {
	warnings := append(o.Options.Warnings(), o.ignored.Warnings()...)
	if o.podInfoVersion != "" {
		warnings = append(warnings, "--pod-info-mount-version is deprecated, use --pod-info-mount")
	}
	return warnings
}

// spec returns the fields that flags set, those of deprecated flags among them.
func (o *Options) spec() storagev1.CSIDriverSpec {
	spec := *o.Spec.DeepCopy()
	if o.podInfoVersion != "" {
		spec.PodInfoOnMount = new(true)
	}
	return spec
}
