package e2e

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// recordAnnotation has the records of volumes in progress.
const recordAnnotation = "csi.longshore.dev/provisioner-journal"

// claimsPerKill is how many claims are made between two deaths of the provisioner.
const claimsPerKill = 10

// The lease of a provisioner that is started again whenever it has ended.
const (
	leaseDuration = 6 * time.Second
	renewDeadline = 4 * time.Second
	retryPeriod   = time.Second
)

// The values of FORM: how the provisioner is run.
const (
	// elected: there is an election.
	elected = "elected"
	// alone: there is none.
	alone = "alone"
	// ofNode: the provisioner is that of a node.
	ofNode = "node"
	// unrecorded: there is an election, and no permission to write other Leases than its own. Volumes may be leaked.
	unrecorded = "forbidden"
)

// leakTest makes and deletes claims while its driver ends calls in all ways, and kills the provisioner.
type leakTest struct {
	*story
	random *rand.Rand
	driver *csitest.Driver
	// pods is how many pods of the provisioner there were before the present one.
	pods int
	// name is the name of the driver, lease that of its Lease.
	name, lease, class string
	// logs is the file with the output of all provisioners.
	logs        string
	provisioner *exec.Cmd
	// ended is closed once the provisioner has ended, and address is that of the driver.
	ended   chan struct{}
	address string
	// form says how the provisioner is run, and kubeconfig is its own. former is the program of a former version, which ours replaces at the first interruption; empty: none.
	form, kubeconfig, former string
	// kills and faults are the ways to end the provisioner and a call.
	kills, faults []string

	mu sync.Mutex
	// counts says how often what was done.
	counts map[string]int
	// late has the requests that the driver is still working on although it has ended their calls.
	late map[string]*csi.CreateVolumeRequest
	// healed says that no work begins any more that goes on behind the end of its call.
	healed bool
}

// TestLeaks kills the provisioner again and again while claims come and go. In the end each claim that is left has its volume, the
// driver has no other, and nothing is recorded. `make soak TEST=leaks` plays longer games, with several seeds at a time.
func TestLeaks(t *testing.T) {
	dev(t)
	claims, err := strconv.Atoi(testbed.SoakSetting("N", "20"))
	if err != nil {
		t.Fatalf("N=%s: must be a number", testbed.SoakSetting("N", "20"))
	}
	for _, seed := range seeds.All(t) {
		for _, form := range strings.Split(testbed.SoakSetting("FORM", elected+","+alone), ",") {
			t.Run(fmt.Sprintf("%s/%d", form, seed), func(t *testing.T) {
				t.Parallel()
				t.Logf("seed %d: `make soak TEST=leaks N=%d SEED=%d FORM=%s` plays the same game, as far as processes are alike", seed, claims, seed, form)
				newLeakTest(t, form, seed).play(claims)
			})
		}
	}
}

// newLeakTest returns a game with a driver of its own.
func newLeakTest(t *testing.T, form string, seed uint64) *leakTest {
	t.Helper()
	s := newStory(t)
	l := &leakTest{
		story: s, random: rand.New(rand.NewPCG(seed, 0)), name: s.Namespace + ".leaktest.example.com", class: s.Namespace + "-leaks",
		lease: strings.ReplaceAll(s.Namespace+".leaktest.example.com", ".", "-"), logs: filepath.Join(t.TempDir(), "log"),
		counts: map[string]int{}, late: map[string]*csi.CreateVolumeRequest{},
		form: form, kubeconfig: s.Dev.KubeconfigOf("csi-provisioner"), former: testbed.SoakSetting("FORMER", ""),
		kills:  strings.Split(testbed.SoakSetting("KILL", "kill,term,lease"), ","),
		faults: strings.Split(testbed.SoakSetting("FAULTS", "late,lost,hang,crash,uncertain-then-final,already-exists"), ","),
	}
	options := csitest.Options{Name: l.name}
	switch form {
	case elected:
	case unrecorded:
		l.forbid()
	case ofNode:
		options.NodeID, options.Topology = l.node(), map[string]string{"example.com/node": l.node()}
		l.kubeconfig = s.Dev.Kubeconfig // the user of the cluster's provisioner has not the rights of one on each node
		fallthrough
	case alone:
		l.kills = slices.DeleteFunc(l.kills, func(how string) bool { return how == "lease" })
	default:
		t.Fatalf("FORM=%s: must be of %q", form, []string{elected, alone, ofNode, unrecorded})
	}
	if l.former != "" {
		l.kubeconfig = s.Dev.Kubeconfig // the rights that a former version needed are not those of today
	}
	l.driver = csitest.New(options)
	s.AddClass(testbed.Class(l.class, l.name, storagev1.VolumeBindingImmediate))
	return l
}

// node returns the node of a provisioner for one node.
func (l *leakTest) node() string { return l.Dev.Nodes[0] }

// forbid gives the provisioner a user that may write its Lease and no other.
func (l *leakTest) forbid() {
	l.T.Helper()
	user := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: l.lease}}
	cluster, meta := metav1.ObjectMeta{Name: l.lease}, metav1.ObjectMeta{Namespace: devcluster.Namespace, Name: l.lease}
	l.Retry("give the provisioner few rights", func(ctx context.Context) error {
		_, err1 := l.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: cluster, Subjects: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "longshore:csi-provisioner"},
		}, metav1.CreateOptions{})
		_, err2 := l.Client.RbacV1().Roles(meta.Namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{l.lease}, Verbs: []string{"get", "update"}},
		}}, metav1.CreateOptions{})
		_, err3 := l.Client.RbacV1().RoleBindings(meta.Namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: user, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: l.lease},
		}, metav1.CreateOptions{})
		_, err4 := l.Client.CoordinationV1().Leases(meta.Namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: meta}, metav1.CreateOptions{})
		return errors.Join(testbed.IgnoreExists(err1), testbed.IgnoreExists(err2), testbed.IgnoreExists(err3), testbed.IgnoreExists(err4))
	})
	l.kubeconfig = testbed.Impersonate(l.T, l.Dev.Kubeconfig, l.lease)
}

// play plays one game.
func (l *leakTest) play(claims int) {
	l.T.Helper()
	l.T.Cleanup(func() {
		if l.T.Failed() {
			l.T.Logf("what the log says of the volumes that were leaked, and its end:\n%s", l.excerpt())
		}
	})
	l.driver.Inject(csitest.Fault{Match: l.trace})
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: l.ending, Code: codes.Internal})
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: l.working, Code: codes.Aborted})
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: l.fault("hang"), After: true, Hang: true})
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: l.fault("lost"), After: true, Code: codes.Unavailable})
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: l.fault("late"), Code: codes.DeadlineExceeded})
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", Match: l.fault("already-exists"), Code: codes.AlreadyExists})
	l.address = filepath.Join(l.T.TempDir(), "csi.sock")
	stop := l.driver.ServeAt(l.T, l.address)
	l.start()
	defer func() { _ = l.provisioner.Process.Kill() }()
	for n := range claims {
		l.CreateClaim(claimName(n), l.class)
		time.Sleep(time.Duration(l.random.IntN(50)) * time.Millisecond)
		l.deleteMaybe(l.random.IntN(n + 1))
		switch n % claimsPerKill {
		case 2:
			if slices.Contains(l.faults, "crash") {
				stop()
				if l.random.IntN(2) == 0 { // long enough for the provisioner to stop its work
					time.Sleep(time.Duration(l.random.IntN(2000)) * time.Millisecond)
				}
				stop = l.driver.ServeAt(l.T, l.address)
				l.count("crash")
			}
		case 6:
			if slices.Contains(l.faults, "api-away") && n%(5*claimsPerKill) == 6 {
				l.Signal("kube-apiserver", "STOP")
				time.Sleep(2 * time.Second)
				l.Signal("kube-apiserver", "CONT")
				l.count("api-away")
			}
		case claimsPerKill - 1:
			next := l.interrupt(l.nextKill())
			// Of the volumes that were in progress some are not wanted any more when the next process starts, or the same leads again.
			for m := max(0, n-claimsPerKill/2); m <= n; m++ {
				l.deleteMaybe(m)
			}
			next()
		}
		l.restart()
	}
	l.heal()
	order := l.check
	if l.form == unrecorded {
		order = l.countLeaks
	}
	order()
	for n := range claims {
		l.DeleteClaim(claimName(n))
	}
	order()
}

// nextKill returns how the provisioner is ended next. A former version is killed.
func (l *leakTest) nextKill() string {
	how := l.kills[l.random.IntN(len(l.kills))]
	if l.former != "" {
		l.former, how = "", "kill"
	}
	return how
}

// trace adds a request to the log of the provisioners: it is no fault.
func (l *leakTest) trace(request proto.Message) bool {
	l.log("request %T: %v", request, request)
	return false
}

// log adds a line of the driver to the log of the provisioners.
func (l *leakTest) log(format string, args ...any) {
	f, err := os.OpenFile(l.logs, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return // what is not logged is missing where the game has failed for another reason
	}
	defer func() { _ = f.Close() }()
	fmt.Fprintf(f, "D%s driver: %s\n", time.Now().Format("0102 15:04:05.000000"), fmt.Sprintf(format, args...))
}

// excerpt returns the lines of the log about volumes without a PersistentVolume, and its last lines.
func (l *leakTest) excerpt() string {
	_, leaks, _ := l.disorder(context.Background())
	text, _ := os.ReadFile(l.logs)
	var lines []string
	for line := range strings.Lines(string(text)) {
		if slices.ContainsFunc(leaks, func(name string) bool { return strings.Contains(line, strings.TrimPrefix(name, "pvc-")) }) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "") + "…\n" + string(text[max(0, len(text)-20000):])
}

// deleteMaybe deletes every other claim.
func (l *leakTest) deleteMaybe(n int) {
	l.T.Helper()
	if l.random.IntN(2) == 0 {
		l.DeleteClaim(claimName(n))
		l.count("deleted")
	}
}

// claimName returns the name of a claim.
func claimName(n int) string { return fmt.Sprintf("claim-%d", n) }

// count counts what was done.
func (l *leakTest) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[what]++
}

// fault returns the condition of a fault, which matches every fifth call for which it is possible.
func (l *leakTest) fault(kind string) func(proto.Message) bool {
	return func(request proto.Message) bool {
		create, ok := request.(*csi.CreateVolumeRequest)
		if !ok || !slices.Contains(l.faults, kind) {
			return false
		}
		exists := slices.ContainsFunc(l.driver.Volumes(), func(v csitest.Volume) bool { return v.Name == create.GetName() })
		l.mu.Lock()
		defer l.mu.Unlock()
		// A driver says that a volume exists only if it does, and that it still works on it only if it does not.
		if l.healed || l.random.IntN(5) > 0 || exists != (kind == "already-exists") {
			return false
		}
		if kind == "late" {
			l.log("work on %s begins", create.GetName())
			l.late[create.GetName()] = proto.CloneOf(create)
			time.AfterFunc(time.Duration(l.random.IntN(5000))*time.Millisecond, func() { l.finish(create.GetName()) })
		}
		l.counts[kind]++
		return true
	}
}

// working matches the requests that the driver is still working on.
func (l *leakTest) working(request proto.Message) bool {
	create, ok := request.(*csi.CreateVolumeRequest)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, late := l.late[create.GetName()]
	return ok && late
}

// ending matches every other one of them: their calls end with an error that says nothing about the work.
func (l *leakTest) ending(request proto.Message) bool {
	if !slices.Contains(l.faults, "uncertain-then-final") || !l.working(request) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.random.IntN(2) == 0 {
		return false
	}
	l.counts["uncertain-then-final"]++
	return true
}

// finish ends the work on a volume.
func (l *leakTest) finish(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if request, ok := l.late[name]; ok {
		_, err := l.driver.CreateVolume(context.Background(), request)
		l.log("end of the work on %s: %v", name, err)
		delete(l.late, name)
	}
}

// heal ends all faults, and what the driver still works on: that first, as a driver does not make a volume that it is still working on.
func (l *leakTest) heal() {
	l.mu.Lock()
	l.healed = true
	names := slices.Collect(maps.Keys(l.late))
	l.mu.Unlock()
	for _, name := range names {
		l.finish(name)
	}
	l.driver.Heal()
}

// start starts a provisioner, which has the name of the one before, as a container that is restarted in its pod has, unless l.pods has changed.
func (l *leakTest) start() {
	l.T.Helper()
	log, err := os.OpenFile(l.logs, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		l.T.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	args := []string{
		"run", "csi-provisioner", "-v=2", "--csi-address=" + l.address, "--kubeconfig=" + l.kubeconfig,
		"--timeout=3s", "--retry-interval-max=5s", "--termination-grace-period=20s", "--leader-election-namespace=" + devcluster.Namespace,
	}
	switch l.form {
	case ofNode:
		args = append(args, "--node-deployment", "--node-deployment-base-delay=100ms", "--node-deployment-max-delay=1s")
	case elected, unrecorded:
		args = append(args, "--leader-election", "--leader-election-lease-duration="+leaseDuration.String(),
			"--leader-election-renew-deadline="+renewDeadline.String(), "--leader-election-retry-period="+retryPeriod.String())
	}
	l.provisioner = exec.Command(l.Dev.Program, args...)
	if l.former != "" {
		l.provisioner = exec.Command(l.former, args[2:]...)
	}
	l.provisioner.Env = append(os.Environ(), fmt.Sprint("POD_NAME=leaktest-", l.pods), "NODE_NAME="+l.node(), "KUBE_FEATURE_WatchListClient=false")
	l.provisioner.Stdout, l.provisioner.Stderr = log, log
	if err := l.provisioner.Start(); err != nil {
		l.T.Fatal(err)
	}
	l.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = cmd.Wait()
	}(l.provisioner, l.ended)
}

// restart starts the provisioner again if it has ended by itself, as a kubelet does: it loses its Lease where the API server is slow.
func (l *leakTest) restart() {
	l.T.Helper()
	select {
	case <-l.ended:
		l.count("restart")
		l.start()
	default:
	}
}

// interrupt ends the provisioner, or takes the Lease from it. next has one work again. One that is elected and ends in good order has a successor of another pod at
// once, as in an update of a Deployment.
func (l *leakTest) interrupt(how string) (next func()) {
	l.T.Helper()
	l.count(how)
	switch {
	case how == "lease":
		l.steal()
		return func() { l.hold("") }
	case how == "term" && l.form == elected && l.former == "":
		ended := l.ended
		_ = l.provisioner.Process.Signal(syscall.SIGTERM)
		l.pods++
		l.start()
		return func() { <-ended }
	}
	l.kill(how)
	return l.start
}

// kill ends the provisioner, in good order or not.
func (l *leakTest) kill(how string) {
	l.T.Helper()
	signal := syscall.SIGKILL
	if how == "term" {
		signal = syscall.SIGTERM
	}
	_ = l.provisioner.Process.Signal(signal)
	<-l.ended
}

// steal takes the Lease from the provisioner until that has stopped its work. One that does not lead yet has none to stop.
func (l *leakTest) steal() {
	l.T.Helper()
	before := l.logged(lostLease)
	l.Wait("the provisioner to lose its Lease", func(context.Context) (bool, error) {
		l.hold("a thief")
		for end := time.Now().Add(leaseDuration); time.Now().Before(end); time.Sleep(testbed.Period) {
			if l.logged(lostLease) > before {
				return true, nil
			}
		}
		l.hold("")
		time.Sleep(2 * retryPeriod)
		return false, nil
	})
}

// Lines in the log of a provisioner.
const (
	lostLease   = "waiting for the next election"
	goingOn     = "Going on with volumes that another process had in progress"
	notRecorded = "Volumes in progress are not recorded"
	besideCalls = "Another instance may take over, running calls go on"
)

// logged counts how often the provisioners have logged a line.
func (l *leakTest) logged(line string) int {
	text, err := os.ReadFile(l.logs)
	if err != nil {
		l.T.Fatal(err)
	}
	return strings.Count(string(text), line)
}

// hold makes a process, or none, the holder of the Lease.
func (l *leakTest) hold(identity string) {
	l.T.Helper()
	leases := l.Client.CoordinationV1().Leases(devcluster.Namespace)
	l.Wait("the lease to have another holder", func(ctx context.Context) (bool, error) {
		lease, err := leases.Get(ctx, l.lease, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if holder := lease.Spec.HolderIdentity; identity != "" && (holder == nil || *holder == "") {
			return false, nil // the provisioner stands by while the driver is away: what is taken from it later would be another change of the holder
		}
		now := metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &identity, &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err == nil, err
	})
}

// check waits until claims, PersistentVolumes, volumes of the driver and records agree, so that without claims there is nothing.
func (l *leakTest) check() {
	l.T.Helper()
	l.settle("claims, volumes and records to agree", func(problem string, leaks []string) string {
		if problem == "" && len(leaks) > 0 {
			return fmt.Sprintf("volumes %q of %d in the driver have no PersistentVolume", leaks, len(l.driver.Volumes()))
		}
		return problem
	})
	for _, violation := range l.driver.Violations() {
		l.T.Errorf("against the life cycle of CSI: %s", violation)
	}
	l.T.Logf("the driver has %d volumes, each with its claim, 0 records; done: %v; %d successors found records, %d began beside running calls", len(l.driver.Volumes()), l.counts, l.logged(goingOn), l.logged(besideCalls))
}

// countLeaks waits until each claim has its volume, and counts the volumes without a PersistentVolume. Each leader must have logged that this
// can be, unless it was killed before it came to that, which the last one was not.
func (l *leakTest) countLeaks() {
	l.T.Helper()
	leaks := l.settle("claims and volumes to agree, apart from leaks", func(problem string, _ []string) string { return problem })
	text, err := os.ReadFile(l.logs)
	if err != nil {
		l.T.Fatal(err)
	}
	const warning, leader = notRecorded, "Became leader"
	warnings, leaders := strings.Count(string(text), warning), strings.Count(string(text), leader)
	if last := strings.LastIndex(string(text), leader); last < 0 || warnings > leaders || !strings.Contains(string(text[last:]), warning) {
		l.T.Errorf("%d warnings by %d leaders, want one by each, and by the last one", warnings, leaders)
	}
	l.T.Logf("%d volumes of %d are leaked, %d warnings; done: %v", len(leaks), len(l.driver.Volumes()), warnings, l.counts)
}

// settle waits until judge finds nothing wrong, and returns the volumes without a PersistentVolume. The end of a long game takes long: it waits as
// long as something changes.
func (l *leakTest) settle(what string, judge func(problem string, leaks []string) string) (leaks []string) {
	l.T.Helper()
	var problem string
	for changed := time.Now(); time.Since(changed) < testbed.Patience; {
		l.restart()
		begin := time.Now()
		found, volumes, err := l.disorder(l.T.Context())
		if err != nil {
			found = err.Error()
		} else if found = judge(found, volumes); found == "" {
			return volumes
		}
		if found != problem {
			problem, changed = found, time.Now()
		}
		time.Sleep(max(testbed.Period, 4*time.Since(begin))) // lists of thousands of objects cost the API server more than the game does
	}
	l.T.Fatalf("waited in vain for %s: %s; done: %v", what, problem, l.counts)
	return nil
}

// disorder says what is not in order, empty for nothing, and which volumes of the driver have no PersistentVolume.
func (l *leakTest) disorder(ctx context.Context) (problem string, leaks []string, err error) {
	claims, err1 := l.Client.CoreV1().PersistentVolumeClaims(l.Namespace).List(ctx, metav1.ListOptions{})
	volumes, err2 := l.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	leases, err3 := l.Client.CoordinationV1().Leases(devcluster.Namespace).List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", nil, err
	}
	handles := map[string]bool{}
	for _, v := range volumes.Items {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == l.name {
			handles[v.Spec.CSI.VolumeHandle] = true
		}
	}
	made := l.driver.Volumes()
	for _, v := range made {
		if !handles[v.ID] {
			leaks = append(leaks, v.Name)
		}
	}
	counts := map[string]int{}
	for _, claim := range claims.Items {
		switch {
		case claim.Annotations[recordAnnotation] != "" || slices.ContainsFunc(claim.Finalizers, func(name string) bool { return strings.HasPrefix(name, "csi.longshore.dev/") }):
			counts["marked by the provisioner"]++
		case claim.DeletionTimestamp != nil:
			counts["being deleted"]++
		case claim.Status.Phase != corev1.ClaimBound:
			counts[string(claim.Status.Phase)]++
		default:
			continue
		}
		problem = fmt.Sprintf("of %d claims are %v, %s among them", len(claims.Items), counts, claim.Name)
	}
	if problem != "" {
		return problem, leaks, nil
	}
	if len(made)-len(leaks) != len(handles) || len(handles) != len(claims.Items) {
		return fmt.Sprintf("%d claims, %d PersistentVolumes, %d volumes in the driver", len(claims.Items), len(handles), len(made)), leaks, nil
	}
	for _, lease := range leases.Items {
		if records, err := recordsIn(lease.Annotations[recordAnnotation]); strings.HasPrefix(lease.Name, l.lease) && (err != nil || strings.Contains(records, "uid")) {
			return fmt.Sprintf("the Lease %s has %s, error %v", lease.Name, records, err), leaks, nil
		}
	}
	return "", leaks, nil
}

// recordsIn returns the records of volumes in progress as text.
func recordsIn(annotation string) (string, error) {
	if annotation == "" {
		return "", nil
	}
	unpacked, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(annotation)))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(unpacked)
	return string(text), err
}
