package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestServerHasThePinnedVersion(t *testing.T) {
	pins, err := os.ReadFile(filepath.Join(modulePath, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version, err := clientOf(t, admin(t)).Discovery().ServerVersion()
	if err != nil || !strings.Contains(string(pins), "k8s.io/kubernetes "+version.GitVersion) {
		t.Errorf("version %v, %v", version, err)
	}
}

func TestNodesAreRestricted(t *testing.T) {
	node := clientOf(t, userConfig(t, "system:node:restricted-1", "system:nodes"))
	if _, err := node.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node may list all nodes: the Node authorizer is not at work: %v", err)
	}
	if _, err := node.StorageV1().CSIDrivers().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a node may not list drivers: %v", err)
	}
	own, other := &corev1.Node{}, &corev1.Node{}
	own.Name, other.Name = "restricted-1", "restricted-2"
	if _, err := node.CoreV1().Nodes().Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Errorf("a node may not register itself: %v", err)
	}
	if _, err := node.CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node may register another: NodeRestriction is not at work: %v", err)
	}
	if err := clientOf(t, admin(t)).CoreV1().Nodes().Delete(t.Context(), own.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	nobody := rest.AnonymousClientConfig(admin(t))
	if _, err := clientOf(t, nobody).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("without a certificate: %v", err)
	}
	user := clientOf(t, userConfig(t, "somebody"))
	if _, err := user.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("with a certificate and no rights: %v", err)
	}
	distrustful := rest.CopyConfig(admin(t))
	distrustful.CAData = nil
	if _, err := clientOf(t, distrustful).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the machine's own authorities trust the server")
	}
}

// TestControllersWork sees the work of the controller manager and of the scheduler, which have no other way to say that
// their rights and certificates are right.
func TestControllersWork(t *testing.T) {
	client := clientOf(t, admin(t))
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: unique("controllers")}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the controller manager makes the service account of a namespace", func(ctx context.Context) string {
		if _, err := client.CoreV1().ServiceAccounts(space.Name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := client.CoreV1().Pods(space.Name).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the scheduler says that there is no node", func(ctx context.Context) string {
		got, err := client.CoreV1().Pods(space.Name).Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range got.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return ""
			}
		}
		return "no condition"
	})
	if err := client.CoreV1().Namespaces().Delete(t.Context(), space.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAuditLogsWritesWithTheirAuthor(t *testing.T) {
	client := clientOf(t, admin(t))
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: unique("audited")}, Data: map[string]string{"k": "the-content"}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), object.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().ConfigMaps("default").Delete(t.Context(), object.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var lines []string
	eventually(t, "the audit log has the deletion", func(context.Context) string {
		lines = nil
		data, err := os.ReadFile(server.dir.Log("audit"))
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, `"name":"`+object.Name+`"`) {
				lines = append(lines, line)
			}
		}
		if err != nil || len(lines) < 2 {
			return strings.Join(lines, "")
		}
		return ""
	})
	if len(lines) != 2 || !strings.Contains(lines[0], `"verb":"create"`) || !strings.Contains(lines[1], `"verb":"delete"`) {
		t.Errorf("want one create and one delete, got\n%s", strings.Join(lines, ""))
	}
	if all := strings.Join(lines, ""); !strings.Contains(all, `"username":"devcluster-admin"`) || strings.Contains(all, "the-content") {
		t.Errorf("the author is missing, or the content is there:\n%s", all)
	}
}

// TestAuditLogsWhatReadersRead: TestAuditLogsWritesWithTheirAuthor shows that reads of others are not logged.
func TestAuditLogsWhatReadersRead(t *testing.T) {
	name := unique("read")
	reader := clientOf(t, userConfig(t, auditedReader))
	// Its rights may be there a moment after they were written; a refusal is logged just as well.
	if _, err := reader.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}
	eventually(t, "the audit log has the read", func(context.Context) string {
		data, err := os.ReadFile(server.dir.Log("audit"))
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, `"name":"`+name+`"`) && strings.Contains(line, `"verb":"get"`) && strings.Contains(line, auditedReader) {
				return ""
			}
		}
		return fmt.Sprintf("not there, %v", err)
	})
}
