package main

import (
	"context"
	"fmt"
	"path/filepath"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// account is a cluster administrator whose requests the API server counts apart.
type account struct {
	name       string // of the ServiceAccount and of the FlowSchema
	kubeconfig string // path
}

// newAccount makes an account. It is not throttled, and neither is the
// administrator whom people use kubectl as.
func newAccount(ctx context.Context, api kubernetes.Interface, admin, dir, name string) (account, error) {
	a := account{name: name, kubeconfig: filepath.Join(dir, name+".kubeconfig")}
	object := meta.ObjectMeta{Name: name}
	if _, err := api.CoreV1().ServiceAccounts(meta.NamespaceSystem).Create(ctx, &core.ServiceAccount{ObjectMeta: object}, meta.CreateOptions{}); err != nil {
		return a, err
	}
	_, err := api.RbacV1().ClusterRoleBindings().Create(ctx, &rbac.ClusterRoleBinding{
		ObjectMeta: object, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: meta.NamespaceSystem, Name: name}},
	}, meta.CreateOptions{})
	if err != nil {
		return a, err
	}
	everything := []string{"*"}
	_, err = api.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrol.FlowSchema{
		ObjectMeta: object,
		Spec: flowcontrol.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrol.PriorityLevelConfigurationReference{Name: flowcontrol.PriorityLevelConfigurationNameExempt},
			MatchingPrecedence:         2,
			Rules: []flowcontrol.PolicyRulesWithSubjects{{
				Subjects: []flowcontrol.Subject{{Kind: flowcontrol.SubjectKindServiceAccount, ServiceAccount: &flowcontrol.ServiceAccountSubject{Namespace: meta.NamespaceSystem, Name: name}}},
				ResourceRules: []flowcontrol.ResourcePolicyRule{{
					Verbs: everything, APIGroups: everything, Resources: everything, Namespaces: everything, ClusterScope: true,
				}},
				NonResourceRules: []flowcontrol.NonResourcePolicyRule{{Verbs: everything, NonResourceURLs: everything}},
			}},
		},
	}, meta.CreateOptions{})
	if err != nil {
		return a, err
	}
	hours := int64(6 * 60 * 60)
	token, err := api.CoreV1().ServiceAccounts(meta.NamespaceSystem).CreateToken(ctx, name,
		&authentication.TokenRequest{Spec: authentication.TokenRequestSpec{ExpirationSeconds: &hours}}, meta.CreateOptions{})
	if err != nil {
		return a, fmt.Errorf("a token for %s: %w", name, err)
	}
	return a, a.write(admin, token.Status.Token)
}

// write makes the account's kubeconfig, mode 0600, from the administrator's.
func (a account) write(admin, token string) error {
	file, err := clientcmd.LoadFromFile(admin)
	if err != nil {
		return err
	}
	for user := range file.AuthInfos {
		file.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	}
	return clientcmd.WriteToFile(*file, a.kubeconfig)
}
