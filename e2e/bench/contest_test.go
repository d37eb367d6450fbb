package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// measuredUser is the user of the programs that are measured: a service account, which has the API server's priority of pods.
	measuredUser = "system:serviceaccount:kube-system:measured"
	// writers is the number of clients that write objects at the same time.
	writers = 50
)

// program is a sidecar that is measured.
type program struct{ name, path string }

// programs returns a sidecar of kubernetes-csi, "csi-provisioner" for instance, and ours.
func programs(b *testing.B, name string) [2]program {
	b.Helper()
	dev := bed.Dev
	if dev == nil {
		b.Fatalf("%s: must be empty: this benchmark needs a development cluster", testbed.KubeconfigEnv)
	}
	if other := os.Getenv("BENCH_OTHER"); other != "" {
		return [2]program{{otherName(), other}, ownProgram(b, name)}
	}
	return [2]program{{otherName(), testbed.UpstreamProgram(b, name)}, ownProgram(b, name)}
}

// ownProgram returns a sidecar of ours as it is built for images.
func ownProgram(b *testing.B, name string) program {
	b.Helper()
	path := filepath.Join(b.TempDir(), "ours")
	buildOwn(b, path, name)
	return program{"ours", path}
}

// buildOwn builds a component as it is built for images.
func buildOwn(b *testing.B, path, name string) {
	b.Helper()
	module := strings.ReplaceAll(strings.TrimPrefix(name, "csi-"), "-", "")
	testbed.Build(b, path, module, "./cmd/"+name, "-tags", "grpcnotrace", "-ldflags", "-s -w")
}

// contest is the same driver and the same API server for one program after the other. Nothing else uses the driver.
type contest struct {
	*testbed.Scene
	// warm is the scene of claims that are not measured.
	warm               *testbed.Scene
	b                  *testing.B
	driver             *csitest.Driver
	name, class        string
	address            string
	kubeconfig, logDir string
	warmed             int

	mu sync.Mutex
	// calls has the time of the first CreateVolume by the name of the volume.
	calls map[string]time.Time
}

// newContest starts a driver, and stops the components of the cluster that would share the processor with the programs.
func newContest(b *testing.B, on *testbed.Bed, o csitest.Options) *contest {
	b.Helper()
	s := on.NewScene(b)
	c := &contest{
		Scene: s, warm: &testbed.Scene{Bed: on, Namespace: metav1.NamespaceDefault, T: b}, b: b, name: s.Namespace + ".example.com", class: s.Namespace + "-measured",
		kubeconfig: testbed.Impersonate(b, on.Kubeconfig, measuredUser), logDir: b.TempDir(), calls: map[string]time.Time{},
	}
	o.Name = c.name
	c.driver = csitest.New(o)
	c.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: c.see})
	c.address = c.driver.Serve(b)
	c.AddClass(testbed.Class(c.class, c.name, storagev1.VolumeBindingImmediate))
	c.Retry("grant rights", func(ctx context.Context) error {
		_, err := c.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "measured"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: measuredUser}},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	c.hold("csi-provisioner", "csi-attacher")
	b.Cleanup(func() {
		if b.Failed() {
			logs, _ := filepath.Glob(filepath.Join(c.logDir, "*"))
			for _, log := range logs {
				b.Logf("== end of the log of %s\n%s", filepath.Base(log), testbed.Tail(log, 15))
			}
		}
	})
	return c
}

// hold stops processes of the cluster until the end of the benchmark.
func (c *contest) hold(processes ...string) {
	c.b.Helper()
	for _, p := range processes {
		c.Retry("stop "+p, func(ctx context.Context) error { return c.Dev.Hold(ctx, p) })
		c.b.Cleanup(func() {
			if err := c.Dev.Release(context.Background(), p); err != nil {
				c.b.Errorf("start %s: %v", p, err)
			}
		})
	}
}

// see notes a call. It matches none.
func (c *contest) see(request proto.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if create, ok := request.(*csi.CreateVolumeRequest); ok {
		first(c.calls, create.GetName(), time.Now())
	}
	return false
}

func first[K comparable](times map[K]time.Time, name K, now time.Time) {
	if _, ok := times[name]; !ok {
		times[name] = now
	}
}

// called waits for the first CreateVolume for a claim, and returns its time.
func (c *contest) called(s *testbed.Scene, claim string) (at time.Time) {
	c.b.Helper()
	name := "pvc-" + string(s.Claim(claim).UID)
	c.Wait("CreateVolume for claim "+claim, func(context.Context) (ok bool, _ error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		at, ok = c.calls[name]
		return ok, nil
	})
	return at
}

// start starts a program as on a host of its own, and waits until it has the driver's name. With --leader-election its identity is
// the name of the host, in one program as in the other.
func (c *contest) start(p program, host string, args ...string) *exec.Cmd {
	c.b.Helper()
	log, err := os.OpenFile(filepath.Join(c.logDir, p.name+"-"+host), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		c.b.Fatal(err)
	}
	defer log.Close()
	c.driver.ResetCalls()
	cmd := exec.Command("sh", slices.Concat([]string{"-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`, host, p.path,
		"--csi-address=" + c.address, "--kubeconfig=" + c.kubeconfig, "--leader-election", "--leader-election-namespace=" + c.Namespace}, args)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	cmd.Env = []string{"KUBECONFIG=" + c.kubeconfig, "NODE_NAME=" + c.Dev.Nodes[0]} // kubernetes-csi's program prefers the file to the flag
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.b.Fatal(err)
	}
	c.b.Cleanup(func() { testbed.Kill(cmd) })
	c.Wait(p.name+" to ask the driver for its name", func(context.Context) (bool, error) {
		return slices.ContainsFunc(c.driver.Calls(), func(call csitest.Call) bool { return call.Method == "GetPluginInfo" }), nil
	})
	return cmd
}

func claimName(n int) string { return fmt.Sprintf("claim-%d", n) }

// warmUp waits until a claim that is not measured is bound.
func (c *contest) warmUp() {
	c.b.Helper()
	c.warmed++
	name := fmt.Sprintf("%s-%d", c.Namespace, c.warmed)
	c.warm.CreateClaim(name, c.class)
	c.warm.WaitBound(name)
}

// clear deletes claims, PersistentVolumes and Leases, without help of a provisioner.
func (c *contest) clear() {
	c.b.Helper()
	c.deleteLeases()
	release := []byte(`{"metadata":{"finalizers":null}}`)
	for _, namespace := range []string{c.Namespace, metav1.NamespaceDefault} {
		claims := c.Client.CoreV1().PersistentVolumeClaims(namespace)
		c.Retry("delete all claims", func(ctx context.Context) error {
			list, err := claims.List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			return each(ctx, len(list.Items), func(ctx context.Context, i int) error {
				_ = claims.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{})
				_, err := claims.Patch(ctx, list.Items[i].Name, types.MergePatchType, release, metav1.PatchOptions{})
				return testbed.IgnoreNotFound(err)
			})
		})
	}
	c.Wait("all volumes to be deleted", func(ctx context.Context) (bool, error) {
		volumes := c.Client.CoreV1().PersistentVolumes()
		list, err := volumes.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return len(list.Items) == 0, each(ctx, len(list.Items), func(ctx context.Context, i int) error {
			_ = volumes.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{})
			_, err := volumes.Patch(ctx, list.Items[i].Name, types.MergePatchType, release, metav1.PatchOptions{})
			return testbed.IgnoreNotFound(err)
		})
	})
}

// deleteLeases spares the next program the wait for the end of a lease.
func (c *contest) deleteLeases() {
	c.b.Helper()
	c.Retry("delete all leases", func(ctx context.Context) error {
		return c.Client.CoordinationV1().Leases(c.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}

// each calls do for 0 to n-1, for several at the same time.
func each(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// least is the least that any controller does: it watches its kinds of objects and decodes them, calls the driver and sends patches. It decodes no answers,
// and has no queue, metrics, events and logs. To the API server it is the user that the programs are, and it wants protobuf.
type least struct {
	*contest
	client     kubernetes.Interface
	controller csi.ControllerClient
	// stop ends the watches.
	stop context.CancelFunc
}

// patched is an object and a strategic merge patch of it.
type patched struct{ resource, name, subresource, patch string }

// newLeast watches kinds of objects until stop is called.
func newLeast(c *contest, resources ...schema.GroupVersionResource) *least {
	c.b.Helper()
	conn, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	c.must(err)
	c.b.Cleanup(func() { _ = conn.Close() })
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	c.must(err)
	config.QPS, config.ContentType, config.AcceptContentTypes = -1, runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	c.must(err)
	ctx, stop := context.WithCancel(c.b.Context())
	l := &least{contest: c, client: client, controller: csi.NewControllerClient(conn), stop: stop}
	factory := informers.NewSharedInformerFactory(client, 0)
	for _, resource := range resources {
		informer, err := factory.ForResource(resource)
		c.must(err)
		informer.Informer()
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return l
}

func (l *least) clientOf(resource string) rest.Interface {
	if resource == "volumeattachments" {
		return l.client.StorageV1().RESTClient()
	}
	return l.client.CoreV1().RESTClient()
}

// send sends a patch.
func (l *least) send(ctx context.Context, p patched) error {
	err := l.clientOf(p.resource).Patch(types.StrategicMergePatchType).NamespaceIfScoped(l.warm.Namespace, p.resource == "persistentvolumeclaims").
		Resource(p.resource).Name(p.name).SubResource(strings.Fields(p.subresource)...).Body([]byte(p.patch)).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("patch %s %s: %w", p.resource, p.name, err)
	}
	return nil
}

// work sends for each of n objects the patches before the call of the driver, makes it, and sends those after it. It returns the time that this takes.
func (l *least) work(n int, before func(i int) []patched, call func(ctx context.Context, i int) error, after func(i int) []patched) written {
	l.b.Helper()
	began, cpu := time.Now(), ownCPU(l.b)
	l.must(each(l.b.Context(), n, func(ctx context.Context, i int) error {
		for _, p := range before(i) {
			if err := l.send(ctx, p); err != nil {
				return err
			}
		}
		if err := call(ctx, i); err != nil {
			return err
		}
		for _, p := range after(i) {
			if err := l.send(ctx, p); err != nil {
				return err
			}
		}
		return nil
	}))
	return written{time.Since(began), ownCPU(l.b) - cpu}
}

// written is how long the least controller took, and the processor time of this process, which has the driver, too, meanwhile.
type written struct{ took, cpu time.Duration }

// report prints and reports the figures of the least controller.
func (w written) report(b *testing.B, n int, what string) {
	b.Helper()
	perSecond, cpu := float64(n)/w.took.Seconds(), 1000*w.cpu.Seconds()/float64(n)
	b.ReportMetric(perSecond, "least-"+what+"/s")
	b.ReportMetric(cpu, "least-and-driver-cpu-ms/"+what)
	fmt.Printf("the least that any controller does: %.1f %s/s, cpu-ms/%s with the driver %.2f\n", perSecond, what, what, cpu)
}

// ownCPU is the processor time of this process.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// figure is what was measured of one program.
type figure struct {
	unit  string
	value float64
}

// otherName is what the program is called that ours is compared with.
func otherName() string {
	if os.Getenv("BENCH_OTHER") != "" {
		return "other"
	}
	return "upstream"
}

// compare prints the figures of both programs side by side.
func compare(b *testing.B, other, ours []figure) {
	b.Helper()
	b.ReportMetric(0, "ns/op") // the whole of it says nothing
	fmt.Printf("\n%s\n", b.Name())
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\tours\tours/%[1]s\t\n", otherName())
	for i, u := range other {
		o := ours[i]
		b.ReportMetric(u.value, otherName()+"-"+u.unit)
		b.ReportMetric(o.value, "ours-"+o.unit)
		b.ReportMetric(o.value/u.value, "ratio-"+o.unit)
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.3f\t\n", u.unit, u.value, o.value, o.value/u.value)
	}
	t.Flush()
}

// quantiles returns the median and the 99th percentile.
func quantiles(what string, times []time.Duration) []figure {
	var all []figure
	for _, p := range []float64{0.5, 0.99} {
		all = append(all, figure{fmt.Sprintf("%s-p%.0f-ms", what, 100*p), 1000 * measure.Percentile(times, p).Seconds()})
	}
	return all
}

// benchSetting returns a number that make bench was given, or its default.
func benchSetting(b *testing.B, name string, preset int) int {
	b.Helper()
	text := cmp.Or(os.Getenv("BENCH_"+name), strconv.Itoa(preset))
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		b.Fatalf("%s=%s: must be a number", name, text)
	}
	return n
}
