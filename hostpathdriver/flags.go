package hostpathdriver

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// AddFlags registers the flags on fs, with the present values as defaults.
// Every flag of the Kubernetes project's hostpath driver is accepted.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Endpoint, "endpoint", o.Endpoint, "`address` that serves CSI: unix:///path, a bare path, or tcp://host:port (neither authenticated nor encrypted)")
	fs.StringVar(&o.ProxyEndpoint, "proxy-endpoint", o.ProxyEndpoint, "`address`, as of --endpoint, to which a driver elsewhere connects: this process is then no driver, but joins each connection to --endpoint with one of that driver; flags other than these two and those of the log have no effect")
	fs.StringVar(&o.DriverName, "drivername", o.DriverName, "`name` of the driver, as in CSIDriver objects")
	fs.StringVar(&o.StateDir, "statedir", o.StateDir, "`directory` for volumes and records; controllers and node instances may share it")
	fs.StringVar(&o.NodeID, "nodeid", o.NodeID, "`id` of this node, and the value of its topology segment; required unless --mode=controller")
	fs.Var((*modeValue)(&o.Mode), "mode", "`services` to serve: controller, node or all")

	fs.BoolVar(&o.Topology, "enable-topology", o.Topology, "tie each volume to a node by the topology key "+volume.TopologyKey)
	fs.BoolVar(&o.Attach, "enable-attach", o.Attach, "serve ControllerPublishVolume and ControllerUnpublishVolume; a volume must then be attached before it is staged")
	fs.Int64Var(&o.AttachLimit, "attach-limit", o.AttachLimit, "greatest `number` of volumes attached to a node, wins over --maxvolumespernode; 0: that one; -1: report a random limit from 1 to 10 each time, enforce none")
	fs.Int64Var(&o.MaxVolumesPerNode, "maxvolumespernode", o.MaxVolumesPerNode, "greatest `number` of volumes per node, reported and, with --enable-attach, enforced; 0: no limit")
	fs.BoolVar(&o.ProtectUsed, "check-volume-lifecycle", o.ProtectUsed, "refuse to delete a volume that is in use; false: delete it and its data, and log that")
	fs.Var((*sizeValue)(&o.MaxVolumeSize), "max-volume-size", "largest volume, as a `quantity` such as 1Ti or a number of bytes")
	fs.BoolVar(&o.Inline, "enable-inline-volumes", o.Inline, "serve inline volumes besides persistent ones; as the volumeLifecycleModes of the CSIDriver object say")
	fs.Var((*sizeValue)(&o.MaxInlineSize), "max-inline-volume-size", "largest inline volume, as a `quantity`; 0: that of --max-volume-size")
	fs.Var((*listValue)(&o.InlinePools), "inline-volume-pools", "`names`, separated by commas, of the pools that inline volumes may have, the first of them for those that name none; empty: all")
	fs.BoolVar(&o.Expansion, "enable-volume-expansion", o.Expansion, "serve volume expansion")
	fs.BoolVar(&o.Expansion, "node-expand-required", o.Expansion, "deprecated: another name of --enable-volume-expansion")
	fs.Var(&choiceValue{&o.OfflineExpansion, expansionOnline, expansionOffline}, "volume-expansion-type", "`type` of volume expansion: ONLINE (in use or not) or OFFLINE (ControllerExpandVolume refuses volumes that are attached, staged or published)")
	fs.BoolVar(&o.NoControllerExpansion, "disable-controller-expansion", o.NoControllerExpansion, "do not serve ControllerExpandVolume; NodeExpandVolume then does the whole expansion, and --mode=node needs the --capacity, --pool and --max-volume-size of the controllers")
	fs.BoolVar(&o.NoNodeExpansion, "disable-node-expansion", o.NoNodeExpansion, "do not serve NodeExpandVolume; nodes then expand devices and file systems in use by themselves: with --mode=all before ControllerExpandVolume answers, with --mode=node a second later")
	fs.Var((*sizeValue)(&o.MaxVolumeSizeNode), "max-volume-size-node", "largest volume, as a `quantity`, that NodeExpandVolume accepts; 0: that of --max-volume-size")
	fs.BoolVar(&o.Modify, "enable-controller-modify-volume", o.Modify, "serve ControllerModifyVolume: the parameter readAheadKiB of VolumeAttributesClasses sets the read-ahead of devices and images")
	fs.Var((*listValue)(&o.MutableParameters), "accepted-mutable-parameter-names", "further `names`, separated by commas, of mutable parameters that are kept and have no effect; *: any name")
	fs.BoolVar(&o.ListSnapshots, "enable-list-snapshots", o.ListSnapshots, "serve ListSnapshots")
	fs.BoolVar(&o.SnapshotMetadata, "enable-snapshot-metadata", o.SnapshotMetadata, "serve SnapshotMetadata: the blocks of a snapshot that are allocated, or that differ from another snapshot")
	fs.Var(&choiceValue{&o.MetadataExtents, fixedLength, variableLength}, "snapshot-metadata-block-type", "`type` of the reported blocks: FIXED_LENGTH (4 KiB each) or VARIABLE_LENGTH (adjacent blocks merged)")
	fs.BoolVar(&o.VolumeCondition, "volume-condition", o.VolumeCondition, "report VolumeCondition of CSI v1.12 beside the health calls of v1.13, for kubelets up to Kubernetes 1.36")
	fs.Var((*capacityValue)(&o.Capacity), "capacity", "pool of storage as `kind=quantity`, such as fast=100Gi; may be repeated; space is accounted for, not reserved on the disk")
	fs.Var((*poolValue)(&o.PoolDirs), "pool", "pool of storage with a directory of its own as `kind=path`, such as fast=/mnt/nvme; may be repeated; its size is that of its disk, or the one that --capacity gives it")

	fs.DurationVar(&o.CallTimeout, "call-timeout", o.CallTimeout, "deadline of a call whose caller sets none")
	fs.DurationVar(&o.StopTimeout, "stop-timeout", o.StopTimeout, "grace period of running calls after a termination signal")
	o.HTTP.AddFlags(fs)
	addIgnored(fs, &o.ignored)
}

// addIgnored registers the flags whose functions this driver does not have,
// or always has.
func addIgnored(fs *flag.FlagSet, ignored *flagset.Ignored) {
	const logged = "log lines go to standard error, see --logging-format"
	ignored.Bool(fs, "automaxprocs", "the Go runtime follows the CPU limit of the container by itself")
	ignored.Bool(fs, "ephemeral", "persistent volumes are always served, and inline ones with --enable-inline-volumes")
	for _, name := range []string{"logtostderr", "alsologtostderr", "one_output", "add_dir_header", "skip_headers", "skip_log_headers"} {
		ignored.Bool(fs, name, logged)
	}
	for _, name := range []string{"stderrthreshold", "log_dir", "log_file", "log_file_max_size", "log_backtrace_at"} {
		ignored.String(fs, name, logged)
	}
}

// modeValue is the flag.Value of --mode.
type modeValue Mode

func (m *modeValue) String() string { return string(*m) }

func (m *modeValue) Set(text string) error {
	switch Mode(text) {
	case ModeAll, ModeController, ModeNode:
		*m = modeValue(text)
		return nil
	}
	return fmt.Errorf("must be %q, %q or %q", ModeController, ModeNode, ModeAll)
}

// Values of --snapshot-metadata-block-type and --volume-expansion-type, as in the
// CSI specification.
const (
	fixedLength      = "FIXED_LENGTH"
	variableLength   = "VARIABLE_LENGTH"
	expansionOnline  = "ONLINE"
	expansionOffline = "OFFLINE"
)

// choiceValue is the flag.Value of one of two words.
type choiceValue struct {
	value   *bool
	off, on string
}

func (c *choiceValue) String() string {
	if c.value != nil && *c.value {
		return c.on
	}
	return c.off
}

func (c *choiceValue) Set(text string) error {
	if text != c.off && text != c.on {
		return fmt.Errorf("must be %q or %q", c.off, c.on)
	}
	*c.value = text == c.on
	return nil
}

// sizeValue is the flag.Value of a size in bytes.
type sizeValue int64

func (s *sizeValue) String() string { return strconv.FormatInt(int64(*s), 10) }

func (s *sizeValue) Set(text string) error {
	size, err := volume.ParseQuantity(text)
	if err != nil {
		return err
	}
	*s = sizeValue(size)
	return nil
}

// listValue is the flag.Value of a list of names.
type listValue []string

func (l *listValue) String() string { return strings.Join(*l, ",") }

func (l *listValue) Set(text string) error {
	*l = nil
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			*l = append(*l, name)
		}
	}
	return nil
}

// capacityValue is the flag.Value of --capacity. Each use adds a pool.
type capacityValue map[string]int64

func (c *capacityValue) String() string {
	if c == nil {
		return ""
	}
	return listed(*c)
}

// listed is how the value of a flag that may be repeated is shown.
func listed[V any](pools map[string]V) string {
	list := make([]string, 0, len(pools))
	for _, kind := range slices.Sorted(maps.Keys(pools)) {
		list = append(list, fmt.Sprintf("%s=%v", kind, pools[kind]))
	}
	return strings.Join(list, ",")
}

func (c *capacityValue) Set(text string) error {
	kind, quantity, found := strings.Cut(text, "=")
	if !found || kind == "" {
		return fmt.Errorf("%q: must be kind=quantity, such as fast=100Gi", text)
	}
	size, err := volume.ParseQuantity(quantity)
	if err != nil {
		return err
	}
	if _, twice := (*c)[kind]; twice {
		return fmt.Errorf("%q: kind %q is given twice", text, kind)
	}
	if *c == nil {
		*c = capacityValue{}
	}
	(*c)[kind] = size
	return nil
}

// poolValue is the flag.Value of --pool. Each use adds a pool.
type poolValue map[string]string

func (p *poolValue) String() string {
	if p == nil {
		return ""
	}
	return listed(*p)
}

func (p *poolValue) Set(text string) error {
	kind, dir, found := strings.Cut(text, "=")
	if !found || kind == "" || dir == "" {
		return fmt.Errorf("%q: must be kind=path, such as fast=/mnt/nvme", text)
	}
	if _, twice := (*p)[kind]; twice {
		return fmt.Errorf("%q: kind %q is given twice", text, kind)
	}
	if *p == nil {
		*p = poolValue{}
	}
	(*p)[kind] = dir
	return nil
}
