package clusters

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
	"github.com/longshore-csi/longshore/snapshotmetadata/client"
)

// The objects of a metadata service; a backup program, which may get snapshots; and another program, which may not.
const (
	metadataAudience = "backup.example"
	metadataService  = `
apiVersion: cbt.storage.k8s.io/v1beta1
kind: SnapshotMetadataService
metadata: {name: %s}
spec: {address: "%s", audience: ` + metadataAudience + `, caCert: %s}
`
	metadataUsers = `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: service}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: backup}
---
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: other}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: %[1]s, name: backup}
rules:
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: backup}
subjects: [{kind: ServiceAccount, namespace: %[1]s, name: backup}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: backup}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-snapshot-metadata}
subjects: [{kind: ServiceAccount, namespace: %[1]s, name: service}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-snapshot-metadata}
`
	blockSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %[2]s, namespace: %[1]s}
spec: {volumeSnapshotClassName: %[1]s, source: {persistentVolumeClaimName: data}}
`
	blockSnapshotClass = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %[1]s}
driver: %[2]s
deletionPolicy: Delete
`
)

// TestChangedBlocks backs up a volume by the blocks that hold data, and a day later by those that have changed, over a connection that breaks
// in the middle; and is refused without the right token, and without the right.
func TestChangedBlocks(t *testing.T) {
	dev(t)
	driver := filepath.Join(t.TempDir(), "hostpathplugin")
	testbed.Build(t, driver, "hostpathdriver", "./cmd/hostpathplugin")
	cluster := testbed.OwnCluster(t, 1, "--driver="+driver, // the snapshots end with it
		"--driver-flags=--endpoint={endpoint} --statedir={statedir} --v={v} --mode={mode} --nodeid={node} --enable-attach=true --enable-snapshot-metadata=true")
	m := newMetadataScene(t, cluster)
	c, _ := m.client(m.address, "backup", metadataAudience)

	m.CreateBlockClaim("data", m.ImmediateClass())
	m.WaitBound("data")
	m.put(0, "first")
	m.put(3, "fourth")
	m.put(9, "tenth")
	monday := m.take("monday")
	backup := make([]byte, testbed.ClaimMiB<<20)
	if size := m.copyTo(backup, "monday", c.Allocated(t.Context(), m.named("monday"))); size < 3<<20 || size > 4<<20 {
		t.Errorf("the full backup has %d bytes of a volume with 3 MiB of data", size)
	}
	m.compare("monday", backup)

	m.put(3, "changed")
	m.put(12, "new")
	m.put(9, "")
	m.take("tuesday")
	c, streams := m.client(cutting(t, m.address, 12<<10), "backup", metadataAudience)
	if size := m.copyTo(backup, "tuesday", c.Changed(t.Context(), m.handle(monday), m.named("tuesday"))); size < 3<<20 || size > 4<<20 {
		t.Errorf("the backup of changes has %d bytes, though 3 MiB have changed", size)
	}
	m.compare("tuesday", backup)
	if streams.Load() < 2 {
		t.Error("the connection did not break")
	}

	m.refusals(m.handle(monday))
}

// metadataScene is a story with a metadata service beside the driver.
type metadataScene struct {
	*testbed.Scene
	address string
	ca      []byte
}

// newMetadataScene starts the service, with the rights that its document asks for, and what snapshots need.
func newMetadataScene(t *testing.T, cluster *testbed.Bed) *metadataScene {
	t.Helper()
	m := &metadataScene{Scene: cluster.NewScene(t)}
	m.startSnapshots()
	m.Write(testbed.Decode(m.T, fmt.Sprintf(blockSnapshotClass, m.Namespace, m.Driver))...)
	m.Write(m.documentedRole())
	m.Write(testbed.Decode(m.T, fmt.Sprintf(metadataUsers, m.Namespace))...)
	m.address = testbed.FreeAddress(t)
	_, port, err := net.SplitHostPort(m.address)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m.ca = selfSigned(t, dir)
	m.Write(testbed.Decode(m.T, fmt.Sprintf(metadataService, m.Driver, m.address, base64.StdEncoding.EncodeToString(m.ca)))...)
	m.Run("csi-snapshot-metadata",
		"--kubeconfig="+m.kubeconfigOf(dir, "service"), "--csi-address="+m.Dev.Socket(), "--port="+port,
		"--tls-cert="+filepath.Join(dir, "tls.crt"), "--tls-key="+filepath.Join(dir, "tls.key"), "--http-endpoint=", "--v=4")
	return m
}

// startSnapshots installs the kinds of deploy/crds and starts what the cluster does not run by itself.
func (m *metadataScene) startSnapshots() {
	m.T.Helper()
	files, err := filepath.Glob(testbed.Path("deploy/crds/snapshot/*_*.yaml"))
	if err != nil || len(files) == 0 {
		m.T.Fatalf("no definitions: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			m.T.Fatal(err)
		}
		m.Write(testbed.Decode(m.T, string(data))...)
	}
	for name, args := range map[string][]string{"snapshot-controller": nil, "csi-snapshotter": {"--csi-address=" + m.Dev.Socket()}} {
		if !slices.ContainsFunc(m.Dev.Processes, func(p devcluster.Process) bool { return p.Name == name }) {
			m.Run(name, append([]string{"--kubeconfig=" + m.Kubeconfig}, args...)...)
		}
	}
}

// documentedRole is the ClusterRole of the service's document, without the rights that are optional.
func (m *metadataScene) documentedRole() *unstructured.Unstructured {
	m.T.Helper()
	text, err := os.ReadFile(testbed.Path("snapshotmetadata/docs/rbac.md"))
	if err != nil {
		m.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	manifest, _, _ := strings.Cut(rest, "```")
	var lines []string
	for line := range strings.Lines(manifest) {
		if !strings.Contains(line, "secrets") && !strings.Contains(line, "volumesnapshotclasses") {
			lines = append(lines, line)
		}
	}
	return testbed.Decode(m.T, strings.Join(lines, ""))[0]
}

// token returns a token of a service account for an audience; none: that of the API server.
func (m *metadataScene) token(account string, audiences ...string) string {
	m.T.Helper()
	var token string
	m.Retry("request a token", func(ctx context.Context) error {
		request, err := m.Client.CoreV1().ServiceAccounts(m.Namespace).CreateToken(ctx, account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
		if err == nil {
			token = request.Status.Token
		}
		return err
	})
	return token
}

// kubeconfigOf writes a kubeconfig of a service account.
func (m *metadataScene) kubeconfigOf(dir, account string) string {
	m.T.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: m.Config.Host, CertificateAuthority: m.Config.CAFile, CertificateAuthorityData: m.Config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: m.token(account)}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		m.T.Fatal(err)
	}
	return path
}

// client returns a client of the service with the token of a service account, and the number of its streams.
func (m *metadataScene) client(address, account string, audiences ...string) (*client.Client, *atomic.Int32) {
	m.T.Helper()
	token, streams := m.token(account, audiences...), &atomic.Int32{}
	c, err := client.New(client.Config{
		Address: address, CACert: m.ca,
		Token: func(context.Context) (string, error) {
			streams.Add(1)
			return token, nil
		},
		MaxResults: 1, Attempts: 1000, RetryStart: testbed.Period, RetryMax: time.Second,
	})
	if err != nil {
		m.T.Fatal(err)
	}
	m.T.Cleanup(func() { c.Close() })
	return c, streams
}

func (m *metadataScene) named(snapshot string) client.Snapshot {
	return client.Snapshot{Namespace: m.Namespace, Name: snapshot}
}

// disk returns the driver's file of the volume of a claim: the node agent of a development cluster has no block volumes.
func (m *metadataScene) disk(claim string) string {
	m.T.Helper()
	return filepath.Join(m.Dev.StateDir, "volumes", m.Volume(claim).Spec.CSI.VolumeHandle, "disk")
}

// put fills a mebibyte of the volume with a text, as an application would; "": with zeros.
func (m *metadataScene) put(place int64, text string) {
	m.T.Helper()
	data := make([]byte, 1<<20)
	for i := range data {
		if text != "" {
			data[i] = text[i%len(text)]
		}
	}
	file, err := os.OpenFile(m.disk("data"), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(data, place<<20)
		err = errors.Join(err, file.Sync(), file.Close())
	}
	if err != nil {
		m.T.Fatal(err)
	}
}

// take takes a snapshot, waits until it is ready, and restores it into the volume of a claim with its name.
func (m *metadataScene) take(name string) *unstructured.Unstructured {
	m.T.Helper()
	object := testbed.Decode(m.T, fmt.Sprintf(blockSnapshot, m.Namespace, name))[0]
	m.Write(object)
	m.WaitSnapshotReady(object)
	restored := testbed.BlockClaim(m.Namespace, name, m.ImmediateClass())
	restored.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: name}
	m.AddClaim(restored)
	m.WaitBound(name)
	return object
}

// handle returns the CSI handle of a snapshot.
func (m *metadataScene) handle(snapshot *unstructured.Unstructured) string {
	m.T.Helper()
	name, _, _ := unstructured.NestedString(m.Read(snapshot).Object, "status", "boundVolumeSnapshotContentName")
	content := testbed.Decode(m.T, "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {name: "+name+"}\n")[0]
	handle, _, err := unstructured.NestedString(m.Read(content).Object, "status", "snapshotHandle")
	if err != nil || handle == "" {
		m.T.Fatalf("no handle in %s: %v", name, err)
	}
	return handle
}

// copyTo copies ranges of a restored volume to a backup, and returns how many bytes.
func (m *metadataScene) copyTo(backup []byte, restored string, ranges iter.Seq2[client.Blocks, error]) (size int64) {
	m.T.Helper()
	from, err := os.Open(m.disk(restored))
	if err != nil {
		m.T.Fatal(err)
	}
	defer from.Close()
	for blocks, err := range ranges {
		if err != nil {
			m.T.Fatal(err)
		}
		if blocks.Capacity != int64(len(backup)) {
			m.T.Fatalf("the capacity is %d, want %d", blocks.Capacity, len(backup))
		}
		for _, r := range blocks.Ranges {
			if _, err := from.ReadAt(backup[r.Offset:r.Offset+r.Size], r.Offset); err != nil {
				m.T.Fatal(err)
			}
			size += r.Size
		}
	}
	m.T.Logf("backup of %s: %d KiB of %d", restored, size>>10, len(backup)>>10)
	return size
}

// compare compares a backup with the volume that was restored from the whole snapshot.
func (m *metadataScene) compare(restored string, backup []byte) {
	m.T.Helper()
	want, err := os.ReadFile(m.disk(restored))
	if err != nil {
		m.T.Fatal(err)
	}
	if !bytes.Equal(want, backup) {
		m.T.Errorf("the backup differs from snapshot %s", restored)
	}
}

// refusals makes calls that must be refused, by a real API server's reviews.
func (m *metadataScene) refusals(base string) {
	m.T.Helper()
	ctx := m.T.Context()
	good, _ := m.client(m.address, "backup", metadataAudience)
	other, _ := m.client(m.address, "other", metadataAudience)
	elsewhere, _ := m.client(m.address, "backup", "elsewhere.example")
	forAPI, _ := m.client(m.address, "backup")
	for reason, tc := range map[string]struct {
		ranges iter.Seq2[client.Blocks, error]
		code   codes.Code
		words  string
	}{
		"another audience":       {elsewhere.Allocated(ctx, m.named("monday")), codes.Unauthenticated, metadataAudience},
		"the API server's":       {forAPI.Allocated(ctx, m.named("monday")), codes.Unauthenticated, metadataAudience},
		"no right":               {other.Allocated(ctx, m.named("monday")), codes.PermissionDenied, ":" + m.Namespace + ":other"},
		"no right to the target": {other.Changed(ctx, base, m.named("tuesday")), codes.PermissionDenied, "cannot get volumesnapshots"},
		"another namespace":      {good.Allocated(ctx, client.Snapshot{Namespace: "default", Name: "monday"}), codes.PermissionDenied, `in namespace "default"`},
		"no such snapshot":       {good.Allocated(ctx, m.named("sunday")), codes.NotFound, m.Namespace + "/sunday"},
		"no such base":           {good.Changed(ctx, "none", m.named("tuesday")), codes.NotFound, `"none"`},
	} {
		var err error
		for _, err = range tc.ranges { // the last error is wanted
		}
		if status.Code(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.words) {
			m.T.Errorf("%s: got %v, want %s with %q", reason, err, tc.code, tc.words)
		}
	}
}

// selfSigned writes a certificate for 127.0.0.1, which signs itself, and its key into a directory, and returns it.
func selfSigned(t testing.TB, dir string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "snapshot metadata"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err1 := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	encoded, err2 := x509.MarshalPKCS8PrivateKey(key)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	err3 := os.WriteFile(filepath.Join(dir, "tls.crt"), certPEM, 0o600)
	err4 := os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	return certPEM
}

// cutting forwards connections to an address until the test ends. The first breaks after so many bytes of answers.
func cutting(t testing.TB, to string, after int64) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var connections sync.WaitGroup
	forward := func(near net.Conn, limit int64) {
		far, err := net.Dial("tcp", to)
		if err != nil {
			near.Close()
			return
		}
		connections.Go(func() {
			io.Copy(far, near)
			far.Close()
		})
		connections.Go(func() {
			io.CopyN(near, far, limit)
			near.Close()
			far.Close()
		})
	}
	connections.Go(func() {
		for limit := after; ; limit = 1 << 40 {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			forward(near, limit)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		connections.Wait()
	})
	return listener.Addr().String()
}
