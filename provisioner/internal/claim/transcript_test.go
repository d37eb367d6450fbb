package claim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// TestTranscripts runs each transcript on the journal of a single instance, or of one on each node, and on that of an elected leader.
func TestTranscripts(t *testing.T) {
	t.Run("Alone", func(t *testing.T) {
		reconciletest.RunWith(t, "testdata/flows", reconciletest.Kinds{Install: kubeapitest.Install}, runController)
	})
	t.Run("Elected", func(t *testing.T) {
		reconciletest.RunWith(t, "testdata/flows", reconciletest.Kinds{Install: kubeapitest.Install}, func(ctx context.Context, env *reconciletest.Env) error { return runAs(ctx, env, nextProcess(true)) })
	})
}

// process is what the journal knows a process by.
type process struct {
	identity string
	term     journal.Term
	// resign is called when another process may begin; nil: never.
	resign func()
}

// started counts the processes of all tests.
var started atomic.Int32

// nextProcess returns another process than any before, which was elected if it was not started without an election.
func nextProcess(elected bool) process {
	n := started.Add(1)
	p := process{identity: fmt.Sprint("process-", n)}
	if elected {
		p.term = journal.Term{Lease: "election", Transitions: n}
	}
	return p
}

// runController runs a controller without an election, and the recorder of its events, on the stage of a transcript.
func runController(ctx context.Context, env *reconciletest.Env) error {
	return runAs(ctx, env, nextProcess(false))
}

// runAs is runController as some process.
func runAs(ctx context.Context, env *reconciletest.Env, self process) error {
	if id := env.Arg("snapshot", ""); id != "" {
		env.Driver.AddSnapshot(csitest.Snapshot{ID: id})
	}
	client, err := csiclient.New(csiclient.Config{
		Conn: env.Conn, Timeout: 10 * time.Second, Interceptors: []grpc.UnaryClientInterceptor{shrink(env)},
	})
	if err != nil {
		return err
	}
	if _, err := client.Wait(ctx); err != nil {
		return err
	}
	recorder, err := events.NewRecorder(events.Config{Client: env.Kube, Component: "provisioner", Host: env.Arg("node", "host")})
	if err != nil {
		return err
	}
	api, settings := kubeapitest.New(env.Kube), transcriptSettings(env)
	known, records := viewOf(api, client.Info(), settings), journal.New()
	controller, err := New(Config{
		Info: client.Info, Driver: client.Controller(), Kube: api, View: known, Plugin: migration.Of(client.Info().Name), Events: recorder,
		Competition: transcriptCompetition(env, api, recorder), Journal: records, Settings: settings, Secrets: kube.NewSecretCache(api, nil), Resign: self.resign,
	})
	if err != nil {
		return err
	}
	defer records.Start(ctx, journal.Config{
		Leases: api.Leases("storage"), Name: strings.TrimSuffix(driver+"-journal-"+settings.Node.Name, "-"), Identity: self.identity, Term: self.term,
		Settle: SettlePeriod(settings.Timeout), Timeout: settings.KubeTimeout, Adopted: controller.Resume,
	})()
	defer known.Start(ctx)()
	outlive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var recording errgroup.Group
	recording.Go(func() error { return recorder.Run(outlive) })
	err = controller.Run(ctx)
	stop()
	return errors.Join(err, recording.Wait())
}

// transcriptSettings are the defaults of the binary, but for what the command "start" says.
func transcriptSettings(env *reconciletest.Env) Settings {
	on := func(key string) bool { return env.Arg(key, "") == "true" }
	length, _ := strconv.Atoi(env.Arg("uuid-length", "-1"))
	policy := topology.DefaultPolicy()
	policy.Strict = on("strict-topology")
	policy.Immediate = env.Arg("immediate-topology", "true") == "true"
	return Settings{
		Naming:              volume.Naming{Prefix: env.Arg("prefix", "pvc"), UUIDLength: length},
		Timeout:             10 * time.Second,
		Workers:             10,
		Retry:               flagset.NewRetry(),
		Topology:            policy,
		ExtraCreateMetadata: on("extra-create-metadata"),
		DefaultFSType:       env.Arg("default-fstype", ""),
		PublishReadOnly:     on("publish-readonly"),
		Identity:            "identity",
		Features: capabilities.Features{
			Topology: env.Arg("topology", "true") == "true", AttributesClass: env.Arg("attributes-class", "true") == "true",
			SkipAttach: env.Arg("attach-required", "true") == "false", CrossNamespace: on("cross-namespace"),
		},
		Drain:          15 * time.Second,
		KubeTimeout:    30 * time.Second,
		SourceWorkers:  1,
		ModeConversion: on("mode-conversion"),
		Node:           transcriptNode(env),
	}
}

// transcriptNode is the node of the command "start", with the defaults of the binary; without a name it is the whole cluster.
func transcriptNode(env *reconciletest.Env) view.Node {
	name := env.Arg("node", "")
	if name == "" {
		return view.Node{}
	}
	return view.Node{Name: name, Segments: map[string]string{env.Arg("key", "node"): env.Arg("value", name)}}
}

// transcriptCompetition competes for claims as the command "start" says.
func transcriptCompetition(env *reconciletest.Env, api kubeapi.Client, recorder events.Recorder) Competition {
	if env.Arg("node", "") == "" || env.Arg("immediate", "true") != "true" {
		return nil
	}
	base, _ := time.ParseDuration(env.Arg("base", "20s"))
	return newCompetition(env.Arg("node", ""), base, api, recorder)
}

// shrink makes the driver answer CreateVolume with another size, or without an ID or a source, as the command "start"
// says: drivers that break the specification in these ways exist. Others have volume IDs of another form.
func shrink(env *reconciletest.Env) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := call(ctx, method, req, reply, cc, opts...)
		created, ok := reply.(*csi.CreateVolumeResponse)
		if !ok || err != nil {
			return err
		}
		if size, sizeErr := strconv.ParseInt(env.Arg("answer-bytes", ""), 10, 64); sizeErr == nil {
			created.Volume.CapacityBytes = size
		}
		switch id := env.Arg("answer-id", "*"); id {
		case "*":
		case "none":
			created.Volume.VolumeId = ""
		default: // a star is the volume ID of the test driver
			created.Volume.VolumeId = strings.ReplaceAll(id, "*", created.Volume.VolumeId)
		}
		if path := env.Arg("answer-path", ""); path != "" { // as that of kubernetes.io/vsphere-volume
			created.Volume.VolumeContext["initialvolumefilepath"] = path
		}
		if env.Arg("answer-source", "") == "none" {
			created.Volume.ContentSource = nil
		}
		return nil
	}
}
